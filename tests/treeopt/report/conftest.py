"""Fixtures of small files that the tests of the page share with those of commands."""

from tests.helpers.command_line import profile_file as profile_file
from tests.helpers.command_line import trace_file as trace_file
