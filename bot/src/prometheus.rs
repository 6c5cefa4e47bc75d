//! The text that Prometheus reads, written line by line. What is counted, and when, is the business of who counts.
//!
//! It keeps no registry: each page is small, and half of what stands on it is read from elsewhere at that moment.

use std::fmt::{Arguments, Write};
use std::time::Duration;

/// The content type of such a text.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Labels with their values.
pub(crate) type Labels<'a> = &'a [(&'a str, &'a str)];

/// A page that grows.
#[derive(Default)]
pub(crate) struct Text(pub(crate) String);

impl Text {
    /// Says what the rows below count.
    pub(crate) fn head(&mut self, name: &str, kind: &str, help: &str) {
        self.line(format_args!("# HELP {name} {help}"));
        self.line(format_args!("# TYPE {name} {kind}"));
    }

    /// One value of a metric.
    pub(crate) fn row(&mut self, name: &str, labels: Labels<'_>, value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        if labels.is_empty() {
            self.line(format_args!("{name} {value}"));
        } else {
            self.line(format_args!("{name}{{{}}} {value}", labels.join(",")));
        }
    }

    /// A metric with one value and no label.
    pub(crate) fn single(&mut self, name: &str, kind: &str, help: &str, value: f64) {
        self.head(name, kind, help);
        self.row(name, &[], value);
    }

    /// A metric with a value for each value of one label.
    pub(crate) fn family<'a>(
        &mut self,
        name: &str,
        kind: &str,
        help: &str,
        label: &str,
        rows: impl IntoIterator<Item = (&'a str, f64)>,
    ) {
        self.head(name, kind, help);
        for (of, value) in rows {
            self.row(name, &[(label, of)], value);
        }
    }

    pub(crate) fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.head(name, "histogram", help);
        let bucket = format!("{name}_bucket");
        for (n, end) in histogram.below.iter().zip(histogram.ends) {
            self.row(&bucket, &[("le", &end.to_string())], *n as f64);
        }
        self.row(&bucket, &[("le", "+Inf")], histogram.n as f64);
        self.row(&format!("{name}_sum"), &[], histogram.sum);
        self.row(&format!("{name}_count"), &[], histogram.n as f64);
    }

    /// How much memory this process has, where the system tells.
    pub(crate) fn memory(&mut self) {
        if let Some(bytes) = resident_bytes() {
            let name = "process_resident_memory_bytes";
            self.single(name, "gauge", "Bytes of the process in memory.", bytes as f64);
        }
    }

    fn line(&mut self, line: Arguments<'_>) {
        // A `String` takes everything.
        let _ = writeln!(self.0, "{line}");
    }
}

/// A label's value as it stands between quotes.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// How long things took.
#[derive(Debug)]
pub(crate) struct Histogram {
    ends: &'static [f64],
    /// As many as ends; what lies beyond is in `n` alone.
    below: Vec<u64>,
    n: u64,
    sum: f64,
}

impl Histogram {
    /// One with these upper ends, in seconds.
    pub(crate) fn new(ends: &'static [f64]) -> Self {
        Self { ends, below: vec![0; ends.len()], n: 0, sum: 0.0 }
    }

    pub(crate) fn observe(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        for (n, end) in self.below.iter_mut().zip(self.ends) {
            *n += u64::from(seconds <= *end);
        }
        self.n += 1;
        self.sum += seconds;
    }
}

/// Bytes of this process in memory, as Linux counts them.
fn resident_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_counts_up_to_each_end() {
        let mut histogram = Histogram::new(&[0.1, 1.0]);
        for millis in [50, 100, 500, 5000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let mut text = Text::default();
        text.histogram("x", "y", &histogram);
        let rows: Vec<&str> = text.0.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(
            rows,
            [
                "x_bucket{le=\"0.1\"} 2",
                "x_bucket{le=\"1\"} 3",
                "x_bucket{le=\"+Inf\"} 4",
                "x_sum 5.65",
                "x_count 4"
            ]
        );
    }

    #[test]
    fn a_label_cannot_leave_its_quotes() {
        let mut text = Text::default();
        text.row("x", &[("a", "b\"} 1\ny 2\\"), ("c", "d")], 3.0);
        assert_eq!(text.0, "x{a=\"b\\\"} 1\\ny 2\\\\\",c=\"d\"} 3\n");
    }
}
