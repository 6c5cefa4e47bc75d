//! The checkout against real repositories.

mod fetch;
mod http;
mod local;
mod provide;
mod stock;
