//! A check of what is published, for the tests here and for those of the whole bot.

/// Whether every fence that opens is closed, and every folded part ends.
pub(crate) fn is_closed(text: &str) -> bool {
    let (mut open, mut n_folded) = (None, 0_i32);
    for line in text.lines() {
        let n_ticks = line.chars().take_while(|c| *c == '`').count();
        match open {
            Some(length) if n_ticks >= length && line.len() == n_ticks => open = None,
            Some(_) => {}
            None if n_ticks >= 3 => open = Some(n_ticks),
            None => {
                n_folded += i32::from(line.contains("<details>")) - i32::from(line == "</details>")
            }
        }
    }
    open.is_none() && n_folded == 0
}
