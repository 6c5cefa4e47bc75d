//! What types cannot say: values that would hurt later are refused at the start, by key and reason. Pure.

use std::path::Path;
use std::time::Duration;

use url::Url;

use crate::{
    Backend, CleanUp, Config, Egress, Evidence, Forge, ForgeKind, Gate, Limit, Local, Model,
    ModelKind, Oci, Protected, Publish, Queue, Sandbox, Server, Session, Sweep,
};

/// A key and what is wrong with it.
type Wrong = (String, String);
pub(crate) type Checked = Result<(), Wrong>;

/// Bytes of the memory page; anything below cannot hold a program.
const SMALLEST_BYTES: u64 = 4096;

/// Below it not even the sandbox starts: bubblewrap, a shell and what they read.
const SMALLEST_MEMORY_BYTES: u64 = 32 << 20;

/// Nothing here is meant to take longer, and sums of far longer times overflow.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

pub(crate) fn config(config: &Config) -> Checked {
    need(config.data_dir.is_absolute(), "data_dir", "it must be an absolute path")?;
    server(&config.server)?;
    for (name, settings) in &config.forges {
        forge(name, settings)?;
    }
    for (name, settings) in &config.sweeps {
        sweep(name, settings, config)?;
    }
    queue(&config.queue)?;
    model(&config.model)?;
    session(&config.session)?;
    sandbox(&config.sandbox, &config.data_dir)?;
    secrets_hidden(config)?;
    lesser_backend(config)?;
    egress(&config.egress)?;
    evidence(&config.evidence)?;
    gate(&config.gate)?;
    publish(&config.publish)?;
    clean_up(&config.clean_up)
}

fn need(holds: bool, key: &str, reason: &str) -> Checked {
    if holds { Ok(()) } else { Err((key.to_owned(), reason.to_owned())) }
}

fn positive(time: Duration, key: &str) -> Checked {
    need(!time.is_zero(), key, "it must be longer than nothing")?;
    limited(time, key)
}

/// No calendar and no clock of this program ends within it.
fn limited(time: Duration, key: &str) -> Checked {
    need(time <= LONGEST, key, "it must be at most a year")
}

fn server(server: &Server) -> Checked {
    need(
        server.body_limit_bytes >= 1 << 16,
        "server.body_limit_bytes",
        "it must be at least 65536, or real webhooks are refused",
    )?;
    positive(server.shutdown_grace, "server.shutdown_grace")
}

fn forge(name: &str, forge: &Forge) -> Checked {
    let key = |field: &str| format!("forge.{name}.{field}");
    need(
        is_name(name),
        &format!("forge.{name}"),
        "a forge's name stands in its webhook address: use small letters, digits and `-`",
    )?;
    address(&forge.url, &key("url"))?;
    need(
        !forge.url.path().trim_end_matches('/').ends_with("/api/v1"),
        &key("url"),
        "it ends with `/api/v1`; drop that, the bot adds it by itself",
    )?;
    if let Some(url) = &forge.public_url {
        address(url, &key("public_url"))?;
    }
    let count = forge.webhook_secrets.len();
    need(
        (1..=2).contains(&count),
        &key("webhook_secrets"),
        "give one secret, or two while they are rotated",
    )?;
    let mut names: Vec<String> = Vec::new();
    for repository in &forge.repositories {
        let is_repository = repository.split_once('/').is_some_and(|(owner, name)| {
            let is_part = |part: &str| {
                !matches!(part, "" | "." | "..")
                    && part.chars().all(|c| c.is_ascii_alphanumeric() || "._-".contains(c))
            };
            is_part(owner) && is_part(name)
        });
        need(
            is_repository,
            &key("repositories"),
            &format!("`{repository}` is not written as `owner/name`"),
        )?;
        let small = repository.to_ascii_lowercase();
        need(
            !names.contains(&small),
            &key("repositories"),
            &format!("`{repository}` is there twice"),
        )?;
        names.push(small);
    }
    need(!forge.label.trim().is_empty(), &key("label"), "it must not be empty")?;
    let has_name = |login: &String| !login.trim().is_empty();
    need(forge.bots.iter().all(has_name), &key("bots"), "a login must not be empty")?;
    need(
        !forge.draft_prefix.trim().is_empty(),
        &key("draft_prefix"),
        "without a prefix, every pull request would be open for merging",
    )?;
    let is_github = forge.kind == ForgeKind::GitHub;
    need(forge.app.is_none() || is_github, &key("app"), "only GitHub has apps; use `token`")?;
    need(
        forge.token.is_none() || forge.app.is_none(),
        &key("token"),
        "with `app` there is no `token`; take one of them out",
    )?;
    let reason = match is_github {
        true => "the bot needs a `token`, or an `app` with `id` and `private_key`",
        false => "the bot needs the access token of its user",
    };
    need(forge.token.is_some() || forge.app.is_some(), &key("token"), reason)?;
    absolute(forge.ca_file.as_deref(), &key("ca_file"))?;
    proxy(forge, &key("proxy"))?;
    positive(forge.timeout, &key("timeout"))
}

/// Whether a name can stand anywhere: in an address, a key, a file's name.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=40).contains(&name.len()) && name.chars().all(is_plain)
}

fn sweep(name: &str, sweep: &Sweep, config: &Config) -> Checked {
    let key = |field: &str| format!("sweep.{name}.{field}");
    let all = format!("sweep.{name}");
    need(is_name(name), &all, "a sweep's name has small letters, digits and `-`")?;
    if let Err(reason) = sweep.schedule() {
        return Err((key("schedule"), reason));
    }
    let forge = match (&sweep.forge, config.forges.len()) {
        (Some(name), _) => config.forges.get(name),
        (None, 1) => config.forges.values().next(),
        (None, _) => None,
    };
    let reason = "name one of the configured forges";
    let forge = forge.ok_or_else(|| (key("forge"), reason.to_owned()))?;
    for repository in &sweep.repositories {
        let reason = format!("`{repository}` is not in the `repositories` of its forge");
        need(forge.allows(repository), &key("repositories"), &reason)?;
    }
    for issue in &sweep.exclude {
        let is_issue = issue.rsplit_once('#').is_some_and(|(repository, number)| {
            forge.allows(repository) && number.parse::<u64>().is_ok()
        });
        let reason = format!("`{issue}` is no issue such as `owner/name#7` of a repository there");
        need(is_issue, &key("exclude"), &reason)?;
    }
    let nothing = "it must be at least 1, or the sweep does nothing";
    need(sweep.per_sweep > 0, &key("per_sweep"), nothing)?;
    need(sweep.per_hour != Some(0), &key("per_hour"), nothing)?;
    need(sweep.per_day != Some(0), &key("per_day"), nothing)?;
    need(sweep.open_drafts > 0, &key("open_drafts"), nothing)?;
    for (time, field) in [
        (sweep.older_than, "older_than"),
        (sweep.younger_than, "younger_than"),
        (sweep.time_per_day, "time_per_day"),
    ] {
        time.map_or(Ok(()), |time| positive(time, &key(field)))?;
    }
    let is_share = (0.0..=1.0).contains(&sweep.pause_share);
    need(is_share, &key("pause_share"), "it must be from 0 to 1")?;
    need(sweep.pause_drafts > 0, &key("pause_drafts"), "it must be at least 1")
}

fn proxy(forge: &Forge, key: &str) -> Checked {
    let Some(proxy) = &forge.proxy else { return Ok(()) };
    address(proxy, key)?;
    // libgit2 makes tunnels, and sends what needs none to the server itself.
    let reason = "through a proxy git speaks https only; give the forge an https `url`";
    need(forge.url.scheme() == "https", key, reason)
}

pub(crate) fn address(url: &Url, key: &str) -> Checked {
    crate::address::check(url).map_err(|reason| (key.to_owned(), reason.to_owned()))
}

fn absolute(path: Option<&Path>, key: &str) -> Checked {
    need(path.is_none_or(Path::is_absolute), key, "it must be an absolute path")
}

fn queue(queue: &Queue) -> Checked {
    need((1..=64).contains(&queue.workers), "queue.workers", "it must be from 1 to 64")?;
    need(queue.lease >= Duration::from_secs(3), "queue.lease", "it must be at least 3s")?;
    positive(queue.heartbeat, "queue.heartbeat")?;
    limited(queue.lease, "queue.lease")?;
    limited(queue.backoff_limit, "queue.backoff_limit")?;
    limited(queue.forge_patience, "queue.forge_patience")?;
    limited(queue.settle, "queue.settle")?;
    let least = Duration::from_secs(10);
    need(queue.reconcile >= least, "queue.reconcile", "it must be at least 10s")?;
    limited(queue.reconcile, "queue.reconcile")?;
    need(
        queue.heartbeat <= queue.lease / 3,
        "queue.heartbeat",
        "it must be at most a third of `queue.lease`",
    )?;
    need((1..=20).contains(&queue.attempts), "queue.attempts", "it must be from 1 to 20")?;
    need(
        queue.backoff <= queue.backoff_limit,
        "queue.backoff",
        "it must not be longer than `queue.backoff_limit`",
    )
}

fn model(model: &Model) -> Checked {
    address(&model.endpoint, "model.endpoint")?;
    need(!model.name.trim().is_empty(), "model.name", "it must not be empty")?;
    absolute(model.ca_file.as_deref(), "model.ca_file")?;
    positive(model.connect_timeout, "model.connect_timeout")?;
    positive(model.idle_timeout, "model.idle_timeout")?;
    positive(model.turn_timeout, "model.turn_timeout")?;
    limited(model.retry_after_limit, "model.retry_after_limit")?;
    need((1..=20).contains(&model.attempts), "model.attempts", "it must be from 1 to 20")?;
    local(&model.local, model.kind)
}

fn local(local: &Local, kind: ModelKind) -> Checked {
    need(
        kind != ModelKind::Local || local.folder.is_some(),
        "model.local.folder",
        "a local model needs its folder",
    )?;
    absolute(local.folder.as_deref(), "model.local.folder")?;
    need(local.threads <= 1024, "model.local.threads", "it must be at most 1024")?;
    need((1..=256).contains(&local.sessions), "model.local.sessions", "it must be from 1 to 256")
}

fn session(session: &Session) -> Checked {
    absolute(session.profile.as_deref(), "session.profile")?;
    need(session.turns >= 1, "session.turns", "it must be at least 1")?;
    need(session.turn_tokens >= 1, "session.turn_tokens", "it must be at least 1")?;
    need(
        u64::from(session.turn_tokens) < session.context_tokens,
        "session.turn_tokens",
        "it must be less than `session.context_tokens`",
    )?;
    positive(session.wall_time, "session.wall_time")?;
    need(
        (0.0..=2.0).contains(&session.temperature),
        "session.temperature",
        "it must be from 0 to 2",
    )?;
    need(
        session.top_p > 0.0 && session.top_p <= 1.0,
        "session.top_p",
        "it must be above 0 and at most 1",
    )?;
    need((0.0..1.0).contains(&session.min_p), "session.min_p", "it must be from 0 to below 1")?;
    for (value, key) in
        [(session.read_chars, "session.read_chars"), (session.bash_chars, "session.bash_chars")]
    {
        need((1000..=1_000_000).contains(&value), key, "it must be from 1000 to 1000000")?;
    }
    need(
        (1..=100_000).contains(&session.glob_paths),
        "session.glob_paths",
        "it must be from 1 to 100000",
    )?;
    positive(session.bash_timeout, "session.bash_timeout")?;
    limited(session.bash_timeout_limit, "session.bash_timeout_limit")?;
    need(
        session.bash_timeout <= session.bash_timeout_limit,
        "session.bash_timeout",
        "it must not be longer than `session.bash_timeout_limit`",
    )
}

fn oci(oci: &Oci) -> Checked {
    need(oci.engine.is_absolute(), "sandbox.oci.engine", "it must be an absolute path")?;
    // Each is a word of the engine's command line.
    let is_word = |text: &str| {
        !text.is_empty()
            && !text.starts_with('-')
            && !text.contains(|letter: char| letter.is_whitespace() || letter.is_control())
    };
    need(
        is_word(&oci.image),
        "sandbox.oci.image",
        "the backend `oci` needs the name of an image that the engine has, such as \"localhost/hyla:1\"",
    )?;
    need(
        oci.runtime.as_deref().is_none_or(is_word),
        "sandbox.oci.runtime",
        "it must be the name or the path of a runtime, such as \"runsc\"",
    )
}

fn sandbox(sandbox: &Sandbox, data_dir: &Path) -> Checked {
    need(sandbox.bwrap.is_absolute(), "sandbox.bwrap", "it must be an absolute path")?;
    need(sandbox.uid != 0, "sandbox.uid", "commands of an agent never run as root")?;
    need(sandbox.gid != 0, "sandbox.gid", "commands of an agent never run in the group of root")?;
    if sandbox.backend == Backend::Oci {
        oci(&sandbox.oci)?;
    }
    for folder in &sandbox.read_only {
        showable(folder, data_dir).map_err(|reason| ("sandbox.read_only".to_owned(), reason))?;
    }
    for folder in &sandbox.path {
        let is_visible = folder.starts_with("/usr")
            || sandbox.read_only.iter().any(|open| folder.starts_with(open));
        let is_clean = folder.is_absolute() && !folder.to_string_lossy().contains([':', '\n']);
        need(
            is_visible && is_clean && is_normal(folder),
            "sandbox.path",
            &format!(
                "`{}` is neither inside /usr nor inside one of `sandbox.read_only`",
                folder.display()
            ),
        )?;
    }
    for (name, value) in &sandbox.env {
        variable(name, value)?;
    }
    for (value, key) in [
        (sandbox.tmp_bytes, "sandbox.tmp_bytes"),
        (sandbox.home_bytes, "sandbox.home_bytes"),
        (sandbox.shm_bytes, "sandbox.shm_bytes"),
        (sandbox.file_bytes, "sandbox.file_bytes"),
        (sandbox.workspace_bytes, "sandbox.workspace_bytes"),
    ] {
        need(value >= SMALLEST_BYTES, key, "it must be at least 4096")?;
    }
    need(
        sandbox.memory_bytes >= SMALLEST_MEMORY_BYTES,
        "sandbox.memory_bytes",
        "it must be at least 33554432, or no command starts",
    )?;
    need(
        sandbox.cpus == 0.0 || (0.1..=1024.0).contains(&sandbox.cpus),
        "sandbox.cpus",
        "it must be from 0.1 to 1024, or 0 for all of them",
    )?;
    need(
        sandbox.cpus > 0.0 || !sandbox.require.iter().flatten().any(|limit| *limit == Limit::Cpus),
        "sandbox.require",
        "it asks for a limit of `cpus`, but `sandbox.cpus` is 0, which is none",
    )?;
    need(sandbox.workspace_files >= 100, "sandbox.workspace_files", "it must be at least 100")?;
    need(
        (16..=1 << 20).contains(&sandbox.processes),
        "sandbox.processes",
        "it must be from 16 to 1048576",
    )?;
    need(
        (64..=1 << 20).contains(&sandbox.open_files),
        "sandbox.open_files",
        "it must be from 64 to 1048576",
    )
}

/// No folder that commands are shown holds the file of a secret.
fn secrets_hidden(config: &Config) -> Checked {
    for file in config.secret_files() {
        if let Some(folder) = config.sandbox.read_only.iter().find(|open| file.starts_with(open)) {
            let (folder, file) = (folder.display(), file.display());
            let reason = format!("`{folder}` would show the agent the secret in `{file}`");
            return Err(("sandbox.read_only".into(), reason));
        }
    }
    Ok(())
}

/// What the backends without namespaces ask of the rest of the configuration.
fn lesser_backend(config: &Config) -> Checked {
    let name = match config.sandbox.backend {
        Backend::LandlockDegraded => "landlock-degraded",
        Backend::None => "none",
        Backend::Auto | Backend::Bubblewrap | Backend::Oci => return Ok(()),
    };
    need(
        config.queue.workers == 1,
        "queue.workers",
        &format!("with the sandbox backend `{name}` it must be 1: nothing separates two jobs"),
    )?;
    need(
        !config.egress.is_open(),
        "egress.hosts",
        &format!("the sandbox backend `{name}` cannot let setup commands download; use bubblewrap"),
    )?;
    let n_repositories: usize = config.forges.values().map(|forge| forge.repositories.len()).sum();
    need(
        config.sandbox.backend != Backend::None || n_repositories <= 1,
        "sandbox.backend",
        "without a sandbox, an issue of one repository could change all others: allow one repository in all, or use bubblewrap",
    )
}

fn is_normal(path: &Path) -> bool {
    use std::path::Component;
    path.components().all(|part| matches!(part, Component::RootDir | Component::Normal(_)))
}

/// Whether commands may be shown a folder: those of the system or of people, and whatever lies around the bot's own data,
/// never become visible.
///
/// # Errors
/// Says why not.
pub fn showable(folder: &Path, data_dir: &Path) -> Result<(), String> {
    let shown = folder.display();
    if !folder.is_absolute() || !is_normal(folder) {
        return Err(format!("`{shown}` must be an absolute path without `..`"));
    }
    let closed =
        ["/proc", "/sys", "/dev", "/run", "/var/run", "/etc", "/tmp", "/workspace", "/boot"];
    let too_wide = ["/", "/home", "/root", "/var", "/var/lib", "/mnt", "/media", "/srv"];
    let own = std::env::var_os("HOME").is_some_and(|home| Path::new(&home).starts_with(folder));
    let is_home = own || folder.parent() == Some(Path::new("/home"));
    if closed.iter().any(|root| folder.starts_with(root))
        || too_wide.iter().any(|root| folder == Path::new(root))
        || is_home
    {
        return Err(format!("`{shown}` would show the agent more than a toolchain"));
    }
    if data_dir.starts_with(folder) || folder.starts_with(data_dir) {
        return Err(format!(
            "`{shown}` would show the agent the bot's own data in `{}`",
            data_dir.display()
        ));
    }
    Ok(())
}

fn variable(name: &str, value: &str) -> Checked {
    let key = format!("sandbox.env.{name}");
    let is_name = name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
    need(
        is_name && !name.starts_with(|c: char| c.is_ascii_digit()) && !name.is_empty(),
        &key,
        "a name has capital letters, digits and `_` only",
    )?;
    need(!value.contains(['\0', '\n']), &key, "a value is one line")?;
    let steers = ["PATH", "HOME", "IFS", "ENV", "BASH_ENV", "SHELLOPTS"].contains(&name)
        || name.starts_with("LD_")
        || name.starts_with("BASH_");
    need(!steers, &key, "this variable is the sandbox's own; use `sandbox.path` for programs")?;
    let looks_secret =
        ["TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "PRIVATE", "API_KEY"]
            .iter()
            .any(|word| name.contains(word));
    need(!looks_secret, &key, "the agent reads every variable, so none may hold a secret")
}

fn egress(egress: &Egress) -> Checked {
    need(egress.limit_bytes > 0, "egress.limit_bytes", "it must be more than nothing")?;
    positive(egress.connect_timeout, "egress.connect_timeout")
}

fn evidence(evidence: &Evidence) -> Checked {
    positive(evidence.timeout, "evidence.timeout")?;
    for (repository, command) in &evidence.test_commands {
        let key = format!("evidence.test_commands.{repository}");
        need(repository.contains('/'), &key, "the key is written as `\"owner/name\"`")?;
        need(
            !command.trim().is_empty() && !command.contains('\0'),
            &key,
            "the command must not be empty",
        )?;
    }
    need(
        (1000..=10_000_000).contains(&evidence.output_bytes),
        "evidence.output_bytes",
        "it must be from 1000 to 10000000",
    )
}

fn gate(gate: &Gate) -> Checked {
    if let Err(error) = Protected::new(&gate.protected_paths) {
        return Err(("gate.protected_paths".into(), error.reason()));
    }
    need(gate.files >= 1, "gate.files", "it must be at least 1")?;
    need(gate.lines >= 1, "gate.lines", "it must be at least 1")?;
    need(gate.file_bytes >= SMALLEST_BYTES, "gate.file_bytes", "it must be at least 4096")
}

fn publish(publish: &Publish) -> Checked {
    let name = (Some(&publish.author_name), "publish.author_name");
    for (text, key) in [name, (publish.author_email.as_ref(), "publish.author_email")] {
        let Some(text) = text else { continue };
        need(
            !text.trim().is_empty() && !text.contains(['<', '>', '\n', '\0']),
            key,
            "it must be one line without `<` and `>`",
        )?;
    }
    if let Some(signing) = &publish.signing {
        let has_one = signing.ssh_key.is_some() != signing.openpgp_key.is_some();
        need(has_one, "publish.signing", crate::publish::ONE_KEY)?;
        need(
            signing.openpgp_key.is_none() || publish.author_email.is_some(),
            "publish.author_email",
            "an OpenPGP key says whose it is: set an address that stands in `publish.signing.openpgp_key`",
        )?;
    }
    let prefix = &publish.branch_prefix;
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    let is_prefix = (2..=60).contains(&prefix.len())
        && prefix.chars().all(is_allowed)
        && !prefix.starts_with(['/', '.', '-'])
        && !["..", "//", "/.", ".lock/", "./"].iter().any(|part| prefix.contains(part));
    need(
        is_prefix,
        "publish.branch_prefix",
        "it must be a plain start of a branch name, such as `hyla/`",
    )?;
    need(
        (2000..=65_536).contains(&publish.body_chars),
        "publish.body_chars",
        "it must be from 2000 to 65536, the largest text that forges take",
    )
}

fn clean_up(clean_up: &CleanUp) -> Checked {
    let (minute, day) = (Duration::from_secs(60), Duration::from_secs(24 * 3600));
    need(clean_up.every >= minute, "clean_up.every", "it must be at least a minute")?;
    limited(clean_up.every, "clean_up.every")?;
    need(clean_up.deliveries >= day, "clean_up.deliveries", "it must be at least a day")?;
    need(clean_up.jobs >= day, "clean_up.jobs", "it must be at least a day")
}
