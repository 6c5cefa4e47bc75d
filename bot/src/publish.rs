//! From a patch to a pushed branch: one commit on the base commit, never forced over the commits of others.
