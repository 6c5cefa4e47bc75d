//! The sentences as people read them.
