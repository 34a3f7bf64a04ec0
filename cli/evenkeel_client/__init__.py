"""Client of Evenkeel's API, for the command and the local data centre: signed requests, the context file, errors."""
