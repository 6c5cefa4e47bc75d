//! The model endpoint against a server that speaks the protocol, well and badly.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use bot::model::endpoint::Endpoint;
use bot::model::{Error, Model};
use engine::{Message, Piece, Reply, Request, Sampling, Stop, Tool};
use tests::model::{Call, Fault, MODEL, ModelServer, Recording, Turn};
use tests::tls::TlsServer;

fn request() -> Request {
    Request {
        messages: vec![
            Message::System { content: "You help.".into() },
            Message::User { content: "Read x.".into() },
        ],
        tools: vec![Tool {
            name: "Read".into(),
            description: "Reads.".into(),
            parameters: serde_json::json!({ "type": "object" }),
        }],
        sampling: Sampling::default(),
    }
}

fn settings(server: &ModelServer) -> config::Model {
    config::Model {
        endpoint: server.url().parse().unwrap(),
        name: MODEL.into(),
        idle_timeout: Duration::from_millis(300),
        attempts: 2,
        ..config::Model::default()
    }
}

async fn turn(turns: Vec<Turn>) -> (Result<Reply, Error>, ModelServer, Vec<Piece>) {
    turn_within(Duration::from_secs(20), turns).await
}

async fn turn_within(
    turn_timeout: Duration,
    turns: Vec<Turn>,
) -> (Result<Reply, Error>, ModelServer, Vec<Piece>) {
    let server = ModelServer::start(Recording { turns, ..Recording::default() }).await.unwrap();
    let key = "key-123456".into();
    let settings = config::Model { turn_timeout, ..settings(&server) };
    let endpoint = Endpoint::new(settings, Some(&key)).unwrap();
    let mut pieces = Vec::new();
    let reply = endpoint.turn(&request(), &mut |piece| pieces.push(piece)).await;
    (reply, server, pieces)
}

fn fault(fault: Fault) -> Turn {
    Turn { content: "half".into(), fault: Some(fault), ..Turn::default() }
}

fn status(status: u16, message: &str, retry_after: Option<&str>) -> Turn {
    fault(Fault::Status {
        status,
        message: message.into(),
        retry_after: retry_after.map(str::to_owned),
    })
}

fn good() -> Turn {
    let call = Call {
        name: "Read".into(),
        arguments: "{\"file_path\": \"a file with ü in its name\"}".into(),
    };
    Turn {
        reasoning: "I should read it.".into(),
        content: "Reading.".into(),
        calls: vec![call],
        ..Turn::default()
    }
}

#[tokio::test]
async fn a_turn_arrives_in_pieces_and_whole() {
    let (reply, server, pieces) = turn(vec![good()]).await;
    let reply = reply.unwrap();
    assert_eq!(
        (reply.reasoning.as_str(), reply.content.as_str()),
        ("I should read it.", "Reading.")
    );
    assert_eq!(reply.calls[0].arguments, good().calls[0].arguments);
    assert_eq!((reply.stop, reply.usage.unwrap().total()), (Stop::End, 1100));
    let text: String = pieces
        .iter()
        .filter_map(
            |piece| if let Piece::Reasoning(text) = piece { Some(text.as_str()) } else { None },
        )
        .collect();
    assert_eq!(text, reply.reasoning);
    assert_eq!(pieces.last(), Some(&Piece::Call(reply.calls[0].clone())));

    assert_eq!(server.violations(), Vec::<String>::new());
    insta::assert_snapshot!(serde_json::to_string_pretty(&server.requests()[0]).unwrap());
    assert_eq!(server.headers()[0]["authorization"], "Bearer key-123456");
}

#[tokio::test]
async fn a_busy_server_is_asked_again_when_it_says_so() {
    for retry_after in ["0", "Thu, 01 Jan 1970 00:00:00 GMT"] {
        let (reply, server, _) =
            turn(vec![status(503, "loading", Some(retry_after)), good()]).await;
        assert!(reply.is_ok(), "{retry_after}");
        assert_eq!(server.requests().len(), 2);
    }
    let (reply, _, _) =
        turn(vec![status(429, "busy", Some("0")), status(500, "still busy", Some("0"))]).await;
    assert!(
        matches!(reply, Err(Error::Busy { status: 500, attempts: 2, message, .. }) if message == "still busy")
    );
    let (reply, server, _) = turn(vec![status(429, "busy", Some("86400")), good()]).await;
    assert!(matches!(reply, Err(Error::Busy { status: 429, .. })), "nobody waits for a day");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn every_bad_answer_has_its_own_name() {
    let (reply, ..) = turn(vec![status(401, "wrong key key-123456", None)]).await;
    let Err(Error::Refused { status: 401, message, .. }) = reply else { panic!("{reply:?}") };
    assert_eq!(message, "wrong key [secret]");
    let (reply, ..) =
        turn(vec![status(400, "This model's maximum context length is 8 tokens", None)]).await;
    assert!(matches!(reply, Err(Error::ContextFull { .. })), "{reply:?}");
    let (reply, ..) = turn(vec![fault(Fault::Truncate)]).await;
    assert!(matches!(reply, Err(Error::Answer { .. })), "{reply:?}");
    let (reply, ..) = turn(vec![fault(Fault::Garbage)]).await;
    assert!(matches!(reply, Err(Error::Answer { .. })), "{reply:?}");
    let (reply, ..) = turn(vec![fault(Fault::Hang)]).await;
    assert!(matches!(reply, Err(Error::Silent { .. })), "{reply:?}");
    // More than one turn may hold.
    let (reply, ..) = turn(vec![fault(Fault::Endless)]).await;
    assert!(matches!(reply, Err(Error::Answer { .. })), "{reply:?}");
    let (reply, ..) = turn_within(Duration::from_millis(1), vec![fault(Fault::Endless)]).await;
    assert!(matches!(reply, Err(Error::Slow { .. })), "{reply:?}");
}

#[tokio::test]
async fn a_field_that_a_server_does_not_know_is_left_out_from_then_on() {
    let (reply, server, _) = turn(vec![
        status(400, "Unrecognized request argument: chat_template_kwargs", None),
        good(),
    ])
    .await;
    assert!(reply.is_ok());
    let requests = server.requests();
    assert!(requests[0].get("chat_template_kwargs").is_some());
    assert!(requests[1].get("chat_template_kwargs").is_none());
}

#[tokio::test]
async fn the_context_window_and_the_models_name_are_checked() {
    let server = ModelServer::with_window(Recording::default(), 4096).await.unwrap();
    let endpoint = Endpoint::new(settings(&server), None).unwrap();
    assert_eq!(endpoint.context_window().await.unwrap(), Some(4096));
    let other = config::Model { name: "other".into(), ..settings(&server) };
    let error = Endpoint::new(other, None).unwrap().context_window().await.unwrap_err();
    assert!(error.to_string().contains("`other`") && error.to_string().contains(MODEL), "{error}");

    let nobody =
        config::Model { endpoint: "http://127.0.0.1:9/v1".parse().unwrap(), ..settings(&server) };
    let error = Endpoint::new(nobody, None).unwrap().context_window().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }));
}

#[tokio::test]
async fn a_private_authority_is_trusted_where_it_is_configured() {
    let list = format!("{{\"data\": [{{\"id\": \"{MODEL}\", \"max_model_len\": 4096}}]}}");
    let Some(server) = TlsServer::start(&[("v1/models", &list)]) else {
        eprintln!("skipped: there is no openssl command");
        return;
    };
    let mut settings = config::Model {
        endpoint: format!("{}/v1", server.url()).parse().unwrap(),
        name: MODEL.into(),
        ..config::Model::default()
    };
    let error = Endpoint::new(settings.clone(), None).unwrap().context_window().await.unwrap_err();
    assert!(matches!(error, Error::Unreachable { .. }), "{error}");
    settings.ca_file = Some(server.ca_file());
    let window = Endpoint::new(settings.clone(), None).unwrap().context_window().await.unwrap();
    assert_eq!(window, Some(4096));
    settings.ca_file = Some("/no/such/file".into());
    assert!(Endpoint::new(settings, None).is_err());
}
