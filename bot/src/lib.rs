//! Hyla's bot, in the order in which data flows through it:
//!
//! `inbox` keeps a delivery and its job, `worker` claims it, and `run` tells the rest: `checkout`, `session` (with
//! `model`, `leaf` and `sandbox`), `patch` and `gate`, `evidence`, `publish`, `reply`. Start with `run`.

pub mod ask;
pub mod audit;
pub mod bot;
pub mod checkout;
pub mod clean_up;
pub mod clock;
pub mod command;
mod desk;
pub mod doctor;
pub mod egress;
pub mod evidence;
pub mod explain;
pub mod fix;
pub mod folder;
pub mod forge;
pub mod gate;
mod git_name;
pub mod halt;
pub mod inbox;
pub mod input;
pub mod job;
pub mod jobs;
pub mod leaf;
pub mod metrics;
mod missed;
pub mod model;
pub mod obey;
pub mod outcomes;
pub mod owner;
pub mod patch;
mod prometheus;
pub mod publish;
pub mod reconcile;
pub mod redact;
pub mod replay;
pub mod reply;
pub mod run;
pub mod sandbox;
pub mod serve;
pub mod session;
pub mod setup;
pub mod store;
pub mod sweep;
pub mod telemetry;
pub mod waiting;
mod whereabouts;
pub mod worker;
pub mod workshop;
pub mod workspace;
