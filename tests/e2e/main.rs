//! Stories of the whole bot, each from a person's act on a forge to what people see there.

mod endpoint;
mod main_job;
