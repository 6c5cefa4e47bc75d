//! What the agent left, as a patch on the base commit: an own walk over the workspace, never through its `.git`.
