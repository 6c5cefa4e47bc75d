//! Small facts of the client that need no server.
