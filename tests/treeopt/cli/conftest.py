"""Fixtures that all tests of commands share."""

from tests.helpers.command_line import _one_thread as _one_thread
from tests.helpers.command_line import found as found
from tests.helpers.command_line import made as made
from tests.helpers.command_line import plan_file as plan_file
from tests.helpers.command_line import profile_file as profile_file
from tests.helpers.command_line import small_plan as small_plan
from tests.helpers.command_line import tiny as tiny
from tests.helpers.command_line import trace_file as trace_file
from tests.helpers.command_line import unchanged as unchanged
