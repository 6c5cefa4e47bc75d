//! What tests of the whole bot stand on.

pub mod forge;
pub mod house;
pub mod model;
pub mod outside;
pub mod proxy;
pub mod release;
pub mod story;
pub mod tiny;
pub mod tls;
