//! Stories of the whole bot, each from a person's act on a forge to what people see there.

mod acceptance;
mod attack_down;
mod attack_evidence;
mod attack_fix;
mod attack_model;
mod attack_queue;
mod attack_serve;
mod attack_trust;
mod attack_words;
mod chat;
mod clean_up;
mod commands;
mod crashes;
mod endpoint;
mod explain;
mod failures;
mod gitea_client;
mod hostile;
mod local;
mod main_job;
mod outages;
mod polite;
mod quantize;
mod replay;
mod serve;
mod trigger;
