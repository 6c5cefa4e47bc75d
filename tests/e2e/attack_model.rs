//! A model that leaves behind what no tool was made for.

use tests::house::{House, Setup};
use tests::model::{Call, Recording, Turn};

fn call(name: &str, arguments: serde_json::Value) -> Turn {
    let call = Call { name: name.into(), arguments: arguments.to_string() };
    Turn { calls: vec![call], ..Turn::default() }
}

fn bash(script: &str) -> Turn {
    call("Bash", serde_json::json!({ "command": script }))
}

async fn session(mut turns: Vec<Turn>) -> House {
    turns.push(Turn { content: "Done.".into(), ..Turn::default() });
    let house = House::start(Setup {
        recording: Recording { turns, ..Recording::default() },
        ..Setup::default()
    })
    .await;
    house.labelled_and_worked().await;
    house
}

#[tokio::test]
async fn no_odd_file_holds_a_tool_up() {
    let odd = "mkfifo pipe; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"sock\")'; \
               truncate -s 900G sparse; ln -s pipe link; ln hours.py hard; ln -s loop loop; echo x > -- -rf; \
               mkdir -p 'a\nb'; echo x > 'a\nb/\u{202e}c'; mkdir closed; touch closed/x; chmod 0 closed";
    let path = |path: &str| serde_json::json!({ "file_path": path, "offset": 1, "limit": 5 });
    let started = std::time::Instant::now();
    let house = session(vec![
        bash(odd),
        call("Read", path("pipe")),
        call("Read", path("sock")),
        call("Read", path("sparse")),
        call("Read", path("link")),
        call("Read", path("loop")),
        call("Read", path("-rf")),
        call("Read", path("closed/x")),
        call("Read", path(&"d/".repeat(5000))),
        call("Read", path("a\u{0}b")),
        call("Write", serde_json::json!({ "file_path": "hard", "content": "x" })),
        call("Write", serde_json::json!({ "file_path": "pipe", "content": "x" })),
        call("Edit", serde_json::json!({ "file_path": "sparse", "old_string": "a", "new_string": "b" })),
        call("Glob", serde_json::json!({ "pattern": "**/".repeat(2000) + "*" })),
        call("Glob", serde_json::json!({ "pattern": "[".repeat(5000) })),
        call("Bash", serde_json::json!({ "command": "sleep 1", "timeout": -1e308 })),
        call("Bash", serde_json::json!({ "command": "true", "timeout": 1e308 })),
        call("Read", serde_json::json!({ "file_path": "hours.py", "offset": -9223372036854775808i64, "limit": 18446744073709551615u64 })),
    ])
    .await;
    assert!(started.elapsed().as_secs() < 120, "{:?}", started.elapsed());
    house.assert_clean().await;
}

#[tokio::test]
async fn a_tree_deeper_than_any_path_is_removed() {
    let deep = "python3 - <<'E'\nimport os\nfor n in range(9000):\n    os.mkdir('d' * 100); os.chdir('d' * 100)\nE";
    let house =
        session(vec![bash(deep), call("Glob", serde_json::json!({ "pattern": "**/*" }))]).await;
    let folder = house.bot.folder(house.jobs().await[0].job.id);
    assert!(!folder.workspace().exists());
    house.assert_clean().await;
}

#[test]
fn no_repository_file_takes_the_process_down() {
    for text in [
        format!("a = {}", "[".repeat(60_000)),
        format!("{}b = 1", "a.".repeat(30_000)),
        format!("[{}b]", "a.".repeat(30_000)),
        format!("a = {}", "{b=".repeat(20_000)),
        format!("protected_paths = ['{}']", "{a,".repeat(10_000)),
        format!("protected_paths = ['{}']", "*".repeat(60_000)),
    ] {
        let parsed = config::parse_repo_file(&text);
        if let Ok(file) = parsed {
            let rules = bot::gate::Rules::new(&config::Gate::default(), &file, Vec::new());
            assert!(rules.is_ok(), "{}", &text[..40]);
        }
    }
}

#[tokio::test]
async fn every_name_of_a_ci_definition_is_protected() {
    for name in [".woodpecker.yml", ".woodpecker.yaml", ".woodpecker/x.yaml"] {
        let script = format!("mkdir -p $(dirname {name}); echo 'steps: []' > {name}");
        let house = session(vec![bash(&script)]).await;
        let end = house.end().await;
        let refused = bot::job::Outcome::Refused(bot::job::Rule::ProtectedPath);
        assert_eq!(end.outcome, refused, "{name} is on a branch of the repository itself");
    }
}

#[tokio::test]
async fn an_edit_cannot_make_more_than_a_tool_may_read() {
    // 40 KB are what one turn can hold; 64 MB of `a` would make 2.6 TB of them in the bot's own memory.
    let edit = serde_json::json!({
        "file_path": "many.txt", "old_string": "a", "new_string": "b".repeat(40_000), "replace_all": true,
    });
    let house = session(vec![
        bash("head -c 4000 /dev/zero | tr '\\0' a > many.txt"),
        call("Edit", edit),
        bash("wc -c < many.txt; rm many.txt"),
    ])
    .await;
    let requests = house.model.requests();
    let messages = requests.last().expect("there was a session")["messages"].clone();
    let seen: Vec<&str> = messages
        .as_array()
        .expect("they are a list")
        .iter()
        .filter(|message| message["role"] == "tool")
        .filter_map(|message| message["content"].as_str())
        .collect();
    assert!(seen[1].contains("Error"), "{} {}", seen[1], seen[2]);
}
