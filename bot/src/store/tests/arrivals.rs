//! Deliveries that arrive at the same time.

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::*;

/// Has the database refuse the delivery `bad`.
async fn refuse_one(folder: &Path) {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(folder.join("hyla.db"));
    let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
    sqlx::query(
        "CREATE TRIGGER refuses BEFORE INSERT ON deliveries WHEN new.id = 'bad'
         BEGIN SELECT RAISE(ABORT, 'no'); END",
    )
    .execute(&pool)
    .await
    .unwrap();
    pool.close().await;
}

#[tokio::test]
async fn a_delivery_that_is_refused_takes_no_other_down() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    refuse_one(folder.path()).await;
    let all = ["a", "bad", "b", "c"].map(|id| delivery(id, Some(7)));
    let kept = join_all(all.iter().map(|delivery| store.accept(delivery, at(0)))).await;
    let [Ok(Kept::Queued(job)), Err(Error::Database { .. }), Ok(b), Ok(c)] = &kept[..] else {
        panic!("{kept:?}")
    };
    assert_eq!((b, c), (&Kept::Joined(*job), &Kept::Joined(*job)));
    assert_eq!(store.accept(&delivery("a", Some(7)), at(0)).await.unwrap(), Kept::Repeated);
}

#[tokio::test]
async fn a_delivery_is_kept_though_nobody_waits_for_the_answer() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(folder.path()).await;
    let left = delivery("left", Some(7));
    assert!(store.accept(&left, at(0)).now_or_never().is_none());
    store.accept(&delivery("next", Some(8)), at(0)).await.unwrap();
    assert_eq!(store.accept(&left, at(0)).await.unwrap(), Kept::Repeated);
}
