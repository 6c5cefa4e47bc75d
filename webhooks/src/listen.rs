//! The socket side: so many connections at once, each with so long for the head of a request. What a request says is
//! `receive`'s business.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;

/// How long the listener rests after the system had no socket for it.
const REST: Duration = Duration::from_millis(100);

/// How long a connection without a request may stay when it is time to stop: enough for an answer on its way.
const LAST: Duration = Duration::from_secs(1);

/// What strangers may use up.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Connections at once; further ones wait to be accepted.
    pub connections: usize,
    /// How long the head of a request may take to arrive, and how long a connection may lie idle.
    pub head_timeout: Duration,
}

impl Default for Limits {
    /// Far more than the forges of one organisation use, and far longer than any of them takes.
    fn default() -> Self {
        Self { connections: 256, head_timeout: Duration::from_secs(10) }
    }
}

/// Serves until `stop` is ready, and then until the requests that are being answered have been.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
) {
    let slots = Arc::new(Semaphore::new(limits.connections));
    let (stopping, stopped) = watch::channel(());
    let mut connections = JoinSet::new();
    tokio::pin!(stop);
    loop {
        let accepted = async {
            let slot = Arc::clone(&slots).acquire_owned().await;
            (slot, listener.accept().await)
        };
        let (slot, accepted) = tokio::select! {
            () = &mut stop => break,
            // Forgets those that have ended.
            Some(_) = connections.join_next() => continue,
            accepted = accepted => accepted,
        };
        match accepted {
            Ok((stream, _)) => {
                let answered = connection(stream, router.clone(), limits, stopped.clone());
                connections.spawn(async move {
                    answered.await;
                    drop(slot);
                });
            }
            Err(error) => {
                tracing::warn!(%error, "a connection was not accepted");
                tokio::time::sleep(REST).await;
            }
        }
    }
    drop(stopping);
    while connections.join_next().await.is_some() {}
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    mut stopped: watch::Receiver<()>,
) {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(limits.head_timeout);
    let n_asked = Arc::new(AtomicUsize::new(0));
    let router = TowerToHyperService::new(router);
    let counted = service_fn(|request| {
        let n_asked = Arc::clone(&n_asked);
        n_asked.fetch_add(1, Ordering::Relaxed);
        let answered = router.call(request);
        async move {
            let answer = answered.await;
            n_asked.fetch_sub(1, Ordering::Relaxed);
            answer
        }
    });
    let connection = http.serve_connection(TokioIo::new(stream), counted);
    tokio::pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        // The sender is dropped when it is time to stop.
        Err(_) = stopped.changed() => {
            connection.as_mut().graceful_shutdown();
            match tokio::time::timeout(LAST, &mut connection).await {
                Ok(ended) => ended,
                // Whoever has not said a whole request by now is not waited for.
                Err(_) if n_asked.load(Ordering::Relaxed) == 0 => return,
                Err(_) => connection.await,
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection broke off");
    }
}
