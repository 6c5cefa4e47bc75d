//! Stories of the whole bot, each from a person's act on a forge to what people see there.

mod commands;
mod crashes;
mod endpoint;
mod failures;
mod gitea_client;
mod hostile;
mod local;
mod main_job;
mod serve;
mod trigger;
