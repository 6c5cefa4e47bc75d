//! The repository as the organisation has it: one bare mirror per repository, fetched under a lock, and from it a
//! workspace at the recorded base commit, without hardlinks, remotes or credentials.
