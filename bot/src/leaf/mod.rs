//! Leaf's five tools.
