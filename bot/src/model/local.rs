//! A model in this process: the engine of this machine as another [`Model`].
//!
//! Weights are loaded once, when the service starts or the first turn is asked, so that `hyla doctor` beside a running
//! service does not need their memory again.

use std::path::{Path, PathBuf};

use async_trait::async_trait;
use config::{Dtype, Local as Settings};
use engine::backend::cpu;
use engine::{
    Checkpoint, Encoder, Engine, Event, Failure, Options, Piece, Query, Refused, Reply, Request,
    Shape, Turn,
};
use tokio::sync::OnceCell;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::{Error, Model};

/// Turns that may wait: more than a bot has workers.
const WAITING: usize = 1024;

/// The engine, once it is needed.
pub struct Local {
    folder: PathBuf,
    name: String,
    options: Options,
    engine: OnceCell<Engine>,
}

impl Local {
    /// A model that is not loaded yet. `context_tokens` is what a session may use.
    pub fn new(folder: PathBuf, settings: &Settings, context_tokens: u64) -> Self {
        let context_tokens = usize::try_from(context_tokens).unwrap_or(usize::MAX);
        let options = options(settings, context_tokens);
        Self { name: name_of(&folder), options, engine: OnceCell::new(), folder }
    }

    async fn engine(&self) -> Result<&Engine, Error> {
        let load = || async {
            let options = self.options.clone();
            tracing::info!(folder = %self.folder.display(), "loading the model");
            self.look(move |folder| Engine::open(folder, &options)).await
        };
        self.engine.get_or_try_init(load).await
    }

    /// Reads the folder, on a thread that may wait for the disk.
    async fn look<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Path) -> Result<T, engine::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let folder = self.folder.clone();
        let looked = tokio::task::spawn_blocking(move || read(&folder)).await;
        let failed = |source| Error::Load { folder: self.folder.display().to_string(), source };
        looked.map_err(|_| Error::Local { source: Failure::Defect.into() })?.map_err(failed)
    }
}

/// Starts a turn, whose prompt is made on a thread that may take its time. Its events come in order; it is cancelled when it
/// is dropped.
///
/// # Errors
/// Making the prompt panicked.
pub(super) async fn start(
    engine: &Engine,
    query: Query,
) -> Result<Result<(Turn, UnboundedReceiver<Event>), Refused>, Failure> {
    let engine = engine.clone();
    // A turn is bounded by its tokens, so what waits here is too.
    let (sender, events) = unbounded_channel();
    let start = move || {
        engine.start(query, move |event| {
            // Whoever asked is gone, and has cancelled the turn by that.
            let _ = sender.send(event);
        })
    };
    let started = tokio::task::spawn_blocking(start).await.map_err(|_| Failure::Defect)?;
    Ok(started.map(|turn| (turn, events)))
}

/// The name of a model by its folder.
pub fn name_of(folder: &Path) -> String {
    // A folder may be given as `.` or end with `..`.
    let real = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    real.file_name().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

fn options(settings: &Settings, context_tokens: usize) -> Options {
    let usual = Options::default();
    Options {
        dtype: settings.dtype.map(|dtype| match dtype {
            Dtype::Bf16 => cpu::Dtype::Bf16,
            Dtype::Int8 => cpu::Dtype::Int8,
            Dtype::Int4 => cpu::Dtype::Int4,
        }),
        n_threads: if settings.threads == 0 { usual.n_threads } else { settings.threads },
        n_sessions: settings.sessions,
        n_waiting: WAITING,
        context_tokens,
        memory_bytes: usize::try_from(settings.memory_bytes).unwrap_or(usize::MAX),
        ..usual
    }
}

#[async_trait]
impl Model for Local {
    async fn turn(
        &self,
        request: &Request,
        pieces: &mut (dyn FnMut(Piece) + Send),
    ) -> Result<Reply, Error> {
        let engine = self.engine().await?;
        let failed = |failure: Failure| Error::Local { source: failure.into() };
        let started = start(engine, request.clone().into()).await.map_err(failed)?;
        // Dropped with this future, which cancels the turn.
        let (_turn, mut events) = started.map_err(refused)?;
        while let Some(event) = events.recv().await {
            match event {
                Event::Piece(piece) => pieces(piece),
                Event::Token(_) => {}
                Event::End(end) => return Ok(end.map_err(failed)?.reply),
            }
        }
        Err(failed(Failure::Closed))
    }

    async fn context_window(&self) -> Result<Option<u64>, Error> {
        // All that a turn needs but the weights, which are only looked up.
        let dtype = self.options.dtype;
        let looked = self.look(move |folder| {
            Encoder::load(folder)?;
            let shape = Shape::read(folder)?;
            Checkpoint::open(folder, &shape)?.dtype(dtype)?;
            Ok(shape.max_positions)
        });
        Ok(Some(looked.await? as u64))
    }

    async fn prepare(&self) -> Result<(), Error> {
        self.engine().await.map(|_| ())
    }

    fn name(&self) -> &str {
        &self.name
    }
}

fn refused(refused: Refused) -> Error {
    match refused {
        Refused::TooLong { .. } => Error::ContextFull { message: refused.to_string() },
        Refused::Busy { .. }
        | Refused::Empty
        | Refused::Encode(_)
        | Refused::NoTool
        | Refused::UnknownToken(_)
        | Refused::Closed => Error::Local { source: refused.into() },
    }
}
