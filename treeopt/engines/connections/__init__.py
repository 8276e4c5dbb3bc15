"""Connections: processes of engines and clients of their servers; nothing here knows one engine from another.

* `engine_supervisor`: the program between treeopt and an engine that ends all its processes.
* `server_process`: a server's process: started, waited for, stopped.
* `server_pool`: servers launched by draft length, a few alive at a time.
* `completions_client`: the OpenAI completions API, streamed, with the time of every chunk.
* `worker_process`: a child process that speaks JSON lines.
* `concurrent_requests`: requests kept in flight at one concurrency.
* `streamed_steps`: steps of streamed answers.
* `launched_servers`: what drivers share that launch servers.
"""
