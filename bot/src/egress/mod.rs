//! What a setup command may download, and how: a proxy on a socket, which is the only way out of its sandbox.
//!
//! The proxy connects to hosts on a list and to nothing else. It looks a name up once and connects to the address that it
//! has judged, so that no second answer of a name server leads elsewhere. It does not look into what goes through it, and
//! knows no secret.

mod place;
mod proxy;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;

use async_trait::async_trait;
use tokio::net::TcpStream;

pub use place::{Place, place};
pub use proxy::{Proxy, address_of};

/// Different refusals that are kept by name; of further ones only the number.
const REFUSALS_KEPT: usize = 20;

/// Names and connections, as this machine has them.
#[async_trait]
pub trait Internet: Send + Sync {
    /// All addresses of a name, with this port.
    ///
    /// # Errors
    /// The name has none, or nobody can be asked.
    async fn addresses(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>>;

    /// A connection.
    ///
    /// # Errors
    /// Nobody answers there.
    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream>;
}

/// The machine's own name servers and routes.
#[derive(Debug, Clone, Copy)]
pub struct System;

#[async_trait]
impl Internet for System {
    async fn addresses(&self, name: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        Ok(tokio::net::lookup_host((name, port)).await?.collect())
    }

    async fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        TcpStream::connect(to).await
    }
}

/// Why something was not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Refusal {
    /// It asked for something else than a tunnel.
    #[error("only `CONNECT` is spoken here: use addresses that begin with `https://`")]
    NoTunnel,
    /// What it asked for cannot be read.
    #[error("it is no host and port: {0}")]
    NoHost(&'static str),
    /// The host is on no list.
    #[error("it is not among the hosts that setup commands may download from")]
    NotListed,
    /// The host has an address of the organisation's own network, and is not listed as such.
    #[error("its address is one of the internal network, and it is not listed as a host of it")]
    Internal,
    /// The host's address is on this machine or on its own wire.
    #[error("its address is on this machine, on its link or reserved, where nothing may be asked")]
    Nearby,
    /// The host's name has no address.
    #[error("its name cannot be resolved")]
    NoAddress,
    /// Nobody answers at the host's address.
    #[error("no connection can be made to it")]
    NoAnswer,
    /// As many bytes as are allowed have gone through.
    #[error("as many bytes as one setup command may send and receive have gone through")]
    Spent,
}

/// What went through a proxy, and what did not.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Bytes sent and received.
    pub n_bytes: u64,
    /// What was asked for, why it was refused, and how often. What was asked for is somebody else's text.
    pub refused: BTreeMap<(String, Refusal), u64>,
    /// Refusals of still other kinds.
    pub n_more_refused: u64,
}

impl Traffic {
    /// The same, with what was asked for passed through `change`.
    pub fn map_asked(&mut self, change: impl Fn(&str) -> String) {
        let refused = std::mem::take(&mut self.refused);
        for ((asked, why), n) in refused {
            *self.refused.entry((change(&asked), why)).or_default() += n;
        }
    }

    fn refuse(&mut self, asked: &str, why: Refusal) {
        let key = (asked.to_owned(), why);
        if self.refused.len() >= REFUSALS_KEPT && !self.refused.contains_key(&key) {
            self.n_more_refused += 1;
        } else {
            *self.refused.entry(key).or_default() += 1;
        }
    }
}
