//! The service as a whole: what one forge's answer or one client's connection may do to it.

use std::io::Write;
use std::sync::Arc;
use std::time::Duration;

use tests::forge::{Fault, Matcher};
use tests::house::{House, Setup};
use tests::outside::free_address;

async fn house(address: std::net::SocketAddr) -> (House, config::Secrets) {
    let house = House::start(Setup {
        change: Box::new(move |config| {
            config.server.listen = address;
            config.server.shutdown_grace = Duration::from_secs(3);
            config.queue.workers = 1;
        }),
        ..Setup::default()
    })
    .await;
    let secrets = house.bot.config.secrets(&house.folder().join("hyla.toml"));
    (house, secrets.expect("the secrets of tests are there"))
}

#[tokio::test]
async fn no_answer_of_a_forge_ends_the_service() {
    let (house, secrets) = house(free_address()).await;
    let issue = house.open_issue().await;
    let later = Fault::Status {
        status: 503,
        body: r#"{"message":"maintenance"}"#.into(),
        headers: vec![("retry-after".into(), u64::MAX.to_string())],
    };
    house.forge.fault(Matcher::new("GET", "/api/v1/repos/acme/hours/issues/1"), later, 1);
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    house.clock.advance(house.bot.config.queue.settle);
    let hangups = bot::serve::hangups().expect("signals can be listened to");
    let served =
        bot::serve::serve(Arc::clone(&house.bot), &secrets, hangups, std::future::pending());
    let ended = tokio::time::timeout(Duration::from_secs(8), served).await;
    assert!(ended.is_err(), "the service ended by itself: {ended:?}");
}

#[tokio::test]
async fn a_client_that_says_half_a_request_does_not_hold_up_the_stop() {
    let address = free_address();
    let (house, secrets) = house(address).await;
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let bot = Arc::clone(&house.bot);
    let served = tokio::spawn(async move {
        let quit = async move {
            let _ = stopped.await;
        };
        let hangups = bot::serve::hangups().expect("signals can be listened to");
        bot::serve::serve(bot, &secrets, hangups, quit).await.map_err(|error| error.to_string())
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let mut half = std::net::TcpStream::connect(address).expect("it listens");
    half.write_all(b"POST /hooks/main HTTP/1.1\r\nHost: x\r\n").expect("it reads");
    tokio::time::sleep(Duration::from_millis(300)).await;
    let _ = stop.send(());
    let answer = tokio::time::timeout(Duration::from_secs(10), served).await;
    let answer = answer.expect("it stops").expect("it does not panic");
    assert_eq!(answer, Ok(()), "no job was running");
}

#[tokio::test]
async fn a_storm_of_deliveries_while_the_job_runs_makes_one_draft() {
    let house = House::usual().await;
    let issue = house.open_issue().await;
    house.forge.person("ann").add_label(&house.repo, issue, "hyla").await;
    let known: Vec<String> = house.forge.deliveries().into_iter().map(|each| each.id).collect();
    house.clock.advance(house.bot.config.queue.settle);
    let storm = async {
        let sent = (0..60).map(|n| house.forge.redeliver(&known[n % known.len()]));
        futures_util::future::join_all(sent).await
    };
    let (sent, _) = tokio::join!(storm, house.step());
    assert!(sent.iter().all(|each| each.status == Some(202)));
    house.work_through_retries().await;
    assert_eq!((house.forge.pulls(&house.repo).len(), house.status_comments(issue).len()), (1, 1));
    assert_eq!(house.jobs().await.len(), 1);
    house.assert_clean().await;
}
