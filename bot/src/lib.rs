//! Hyla's bot, in the order in which data flows through it:
//!
//! `inbox` keeps a delivery and its job, `worker` claims it, and `run` tells the rest: `checkout`, `session` (with
//! `model`, `leaf` and `sandbox`), `patch` and `gate`, `evidence`, `publish`, `reply`. Start with `run`.

pub mod checkout;
pub mod clock;
pub mod evidence;
pub mod forge;
pub mod gate;
pub mod inbox;
pub mod job;
pub mod leaf;
pub mod model;
pub mod patch;
pub mod publish;
pub mod sandbox;
pub mod session;
pub mod store;
pub mod workspace;
