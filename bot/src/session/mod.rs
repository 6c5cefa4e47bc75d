//! The loop of turns and tools.
