"""What the tests share: waiting, servers, worker processes, measured figures."""
