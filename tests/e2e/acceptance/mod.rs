//! The acceptance checks of bots of this kind, each by its letter.

mod a;
