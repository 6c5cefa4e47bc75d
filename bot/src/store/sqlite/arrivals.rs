//! Deliveries that arrive at the same time share one transaction: one write to the disk answers them all, and each is
//! answered after that write only. One that the database refuses takes no other down with it.

use std::io;
use std::sync::Arc;

use chrono::{DateTime, Utc};
use sqlx::sqlite::SqlitePool;
use tokio::sync::{mpsc, oneshot};

use super::deliveries;
use super::rows::failed;
use crate::store::{Error, Kept, NewDelivery};

/// Deliveries that share a transaction at most. More wait for the next one, some milliseconds later.
const TOGETHER: usize = 128;

const ACTION: &str = "keep a delivery";

/// The way in for deliveries. Whoever waits may leave: what was handed over is kept all the same.
#[derive(Debug, Clone)]
pub(super) struct Arrivals(mpsc::Sender<Arrival>);

#[derive(Debug)]
struct Arrival {
    delivery: NewDelivery,
    at: DateTime<Utc>,
    answer: oneshot::Sender<Result<Kept, Error>>,
}

impl Arrivals {
    /// Takes deliveries in until the last clone is dropped.
    pub(super) fn new(pool: SqlitePool) -> Self {
        let (sender, receiver) = mpsc::channel(TOGETHER);
        tokio::spawn(take_in(pool, receiver));
        Self(sender)
    }

    /// Keeps a delivery; it is on the disk when this returns.
    pub(super) async fn keep(
        &self,
        delivery: NewDelivery,
        at: DateTime<Utc>,
    ) -> Result<Kept, Error> {
        let (answer, kept) = oneshot::channel();
        let closed = || failed(ACTION)(sqlx::Error::PoolClosed);
        self.0.send(Arrival { delivery, at, answer }).await.map_err(|_| closed())?;
        kept.await.map_err(|_| closed())?
    }
}

async fn take_in(pool: SqlitePool, mut receiver: mpsc::Receiver<Arrival>) {
    let mut arrivals = Vec::with_capacity(TOGETHER);
    while receiver.recv_many(&mut arrivals, TOGETHER).await > 0 {
        let waiting = arrivals.drain(..);
        match together(&pool, waiting.as_slice()).await {
            Ok(kept) => waiting.zip(kept).for_each(|(arrival, kept)| arrival.tell(Ok(kept))),
            Err(Wrong::Delivery(_)) => {
                for arrival in waiting {
                    let kept = alone(&pool, &arrival).await;
                    arrival.tell(kept);
                }
            }
            Err(Wrong::Database(error)) => {
                let error = Arc::new(error);
                let shared = || sqlx::Error::Io(io::Error::other(Arc::clone(&error)));
                waiting.for_each(|arrival| arrival.tell(Err(failed(ACTION)(shared()))));
            }
        }
    }
}

impl Arrival {
    fn tell(self, kept: Result<Kept, Error>) {
        // A forge does not wait for ever.
        let _ = self.answer.send(kept);
    }
}

/// Why nothing of a transaction was kept.
enum Wrong {
    /// One of the deliveries may be at fault.
    Delivery(Error),
    /// It could not be begun or committed.
    Database(sqlx::Error),
}

async fn together(pool: &SqlitePool, arrivals: &[Arrival]) -> Result<Vec<Kept>, Wrong> {
    let begun = pool.begin_with("BEGIN IMMEDIATE").await;
    let mut transaction = begun.map_err(Wrong::Database)?;
    let mut kept = Vec::with_capacity(arrivals.len());
    for arrival in arrivals {
        let one = deliveries::keep(&mut transaction, &arrival.delivery, arrival.at).await;
        kept.push(one.map_err(Wrong::Delivery)?);
    }
    transaction.commit().await.map_err(Wrong::Database)?;
    Ok(kept)
}

async fn alone(pool: &SqlitePool, arrival: &Arrival) -> Result<Kept, Error> {
    match together(pool, std::slice::from_ref(arrival)).await {
        Ok(kept) => Ok(kept[0]),
        Err(Wrong::Delivery(error)) => Err(error),
        Err(Wrong::Database(error)) => Err(failed(ACTION)(error)),
    }
}
