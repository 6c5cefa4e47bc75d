//! A report for a person: a line for each form of the weights, and what its columns mean.

use super::{Decode, Report, Row};

/// The report as lines.
pub(super) fn text(report: &Report) -> String {
    let Report { model, isa, threads, turn, prompt_tokens, .. } = report;
    let billions = report.parameters as f64 / 1e9;
    let bandwidth = report.bandwidth_bytes_per_second / 1e9;
    let threads = crate::reply::count(u32::try_from(*threads).unwrap_or(u32::MAX), "thread");
    let depths = report.results.first().map_or(&[][..], |row| row.decode.as_slice());
    let mut lines = vec![header(depths)];
    lines.extend(report.results.iter().map(cells));
    format!(
        "{model}: {billions:.2} billion parameters, {threads} with {isa}, memory read at {bandwidth:.1} GB/s\n\n\
         {}\n\
         READY   until the first token, from the disk or its cache\n\
         MEMORY  the most that was held while running, weights included\n\
         PROMPT  tokens read in a second, {prompt_tokens} at once\n\
         AT      tokens written in a second behind so many, and how much of what the memory's speed allows\n\
         TURN    of a session: {} tokens read and {} written behind {}\n",
        aligned(&lines),
        turn.reads_tokens,
        turn.writes_tokens,
        turn.depth,
    )
}

fn header(depths: &[Decode]) -> Vec<String> {
    let mut names = ["DTYPE", "READY", "MEMORY", "PROMPT"].map(str::to_owned).to_vec();
    names.extend(depths.iter().map(|decode| format!("AT {}", decode.depth)));
    names.push("TURN".into());
    names
}

fn cells(row: &Row) -> Vec<String> {
    let memory = row.running_peak_bytes;
    let memory = memory.map_or("?".into(), |bytes| format!("{:.2} GB", bytes as f64 / 1e9));
    let mut cells = vec![
        row.dtype.to_owned(),
        time(row.ready_seconds),
        memory,
        format!("{:.1}/s", row.prefill_tokens_per_second),
    ];
    cells.extend(row.decode.iter().map(|decode| {
        let Decode { tokens_per_second, bound_tokens_per_second, .. } = decode;
        let share = tokens_per_second / bound_tokens_per_second * 100.0;
        format!("{tokens_per_second:.1}/s ({share:.0} %)")
    }));
    cells.push(time(row.turn_seconds));
    cells
}

/// Seconds, and minutes where there are many.
fn time(seconds: f64) -> String {
    if seconds < 100.0 { format!("{seconds:.1} s") } else { format!("{:.1} min", seconds / 60.0) }
}

/// Columns as wide as their widest cell.
fn aligned(lines: &[Vec<String>]) -> String {
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max()
    };
    let mut out = String::new();
    for line in lines {
        let cells = line.iter().enumerate();
        let line: String = cells
            .map(|(column, cell)| format!("{cell:width$}  ", width = width(column).unwrap_or(0)))
            .collect();
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::super::Turn;
    use super::*;

    #[test]
    fn a_person_sees_each_form_of_the_weights_in_a_line() {
        let decode = |depth, tokens_per_second| Decode {
            depth,
            tokens_per_second,
            bound_tokens_per_second: 10.0,
        };
        let row = Row {
            dtype: "bf16",
            ready_seconds: 12.34,
            loading_peak_bytes: Some(1),
            running_peak_bytes: Some(9_100_000_000),
            weight_bytes: 8_400_000_000,
            prefill_tokens_per_second: 86.14,
            decode: vec![decode(0, 7.5), decode(8192, 6.0)],
            turn_seconds: 150.0,
        };
        let quick =
            Row { dtype: "int8", running_peak_bytes: None, turn_seconds: 7.0, ..row.clone() };
        let report = Report {
            model: "FrogNano-4B-2609".into(),
            parameters: 4_205_751_296,
            isa: "avx512".into(),
            threads: 2,
            bandwidth_bytes_per_second: 87.3e9,
            prompt_tokens: 512,
            turn: Turn { depth: 8192, reads_tokens: 1000, writes_tokens: 300 },
            results: vec![row, quick],
        };
        insta::assert_snapshot!(text(&report), @"
        FrogNano-4B-2609: 4.21 billion parameters, 2 threads with avx512, memory read at 87.3 GB/s

        DTYPE  READY   MEMORY   PROMPT  AT 0          AT 8192       TURN
        bf16   12.3 s  9.10 GB  86.1/s  7.5/s (75 %)  6.0/s (60 %)  2.5 min
        int8   12.3 s  ?        86.1/s  7.5/s (75 %)  6.0/s (60 %)  7.0 s

        READY   until the first token, from the disk or its cache
        MEMORY  the most that was held while running, weights included
        PROMPT  tokens read in a second, 512 at once
        AT      tokens written in a second behind so many, and how much of what the memory's speed allows
        TURN    of a session: 1000 tokens read and 300 written behind 8192
        ");
    }
}
