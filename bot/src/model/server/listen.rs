//! Connections: how many, how long they may be silent, and how they end when the server is asked to stop.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio_io_timeout::TimeoutStream;

use super::{App, router};

/// Connections at a time; more wait until one of them closes.
const CONNECTIONS: usize = 256;
/// How long the head of a request may take, and how long a connection may lie idle.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a client may leave what was sent unread.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);
/// How long connections may take to send what is left once no turn runs.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);
/// How long the server waits when the system gives no connection, for want of open files perhaps.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Answers until `quit` is ready. Then new turns are refused, and turns that run may end within the grace.
pub async fn serve(app: Arc<App>, listener: TcpListener, quit: impl Future<Output = ()>) {
    let (router, places) = (router(&app), Arc::new(Semaphore::new(CONNECTIONS)));
    let (graceful, mut tasks) = (GracefulShutdown::new(), JoinSet::new());
    let stopped = async {
        quit.await;
        app.stop();
        tracing::info!("stopping; turns that run may end");
        if tokio::time::timeout(app.options.grace, app.idle()).await.is_err() {
            tracing::warn!("turns still run and are broken off");
        }
    };
    tokio::pin!(stopped);
    loop {
        tokio::select! {
            (stream, place) = accept(&listener, &places) => {
                let connection = connection(stream, router.clone(), &graceful);
                tasks.spawn(async move {
                    connection.await;
                    drop(place);
                });
            }
            Some(_) = tasks.join_next() => {}
            () = &mut stopped => break,
        }
    }
    drop(listener);
    // What is not closed by then is dropped, and turns with it.
    let _ = tokio::time::timeout(CLOSE_TIMEOUT, graceful.shutdown()).await;
    tasks.shutdown().await;
}

async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
) -> (TcpStream, OwnedSemaphorePermit) {
    let place = Arc::clone(places).acquire_owned().await.expect("nobody closes the semaphore");
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, place),
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

fn connection(
    stream: TcpStream,
    router: Router,
    graceful: &GracefulShutdown,
) -> impl Future<Output = ()> + use<> {
    // Each piece of an answer should leave at once.
    if let Err(error) = stream.set_nodelay(true) {
        tracing::debug!(%error, "pieces of answers may be delayed");
    }
    let mut stream = TimeoutStream::new(stream);
    stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(Box::pin(stream)), TowerToHyperService::new(router));
    let connection = graceful.watch(connection);
    async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "a connection broke off");
        }
    }
}
