//! `strftime_now`: Python's `datetime.strftime` over a moment that the caller supplies.

use std::fmt::Write as _;

/// A moment on a wall clock somewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WallTime {
    /// Seconds since 1970-01-01 00:00 on that wall: Unix time plus the zone's offset.
    local_seconds: i64,
}

impl WallTime {
    /// The wall clock at Unix time `unix_seconds`, `offset_seconds` east of Greenwich.
    pub const fn new(unix_seconds: i64, offset_seconds: i32) -> Self {
        Self { local_seconds: unix_seconds.saturating_add(offset_seconds as i64) }
    }

    /// Year, month from 1, day from 1, in the proleptic Gregorian calendar.
    fn date(self) -> (i64, usize, i64) {
        // Days are counted from 1 March of year 0, so that leap days end their year.
        let days = self.local_seconds.div_euclid(SECONDS_PER_DAY) + DAYS_TO_1970;
        let (era, day) = (days.div_euclid(DAYS_PER_ERA), days.rem_euclid(DAYS_PER_ERA));
        let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let day = day - (153 * month + 2) / 5 + 1;
        let (year, month) =
            if month < 10 { (year + 400 * era, month + 3) } else { (year + 400 * era + 1, month - 9) };
        (year, usize::try_from(month).unwrap_or(1), day)
    }

    /// `datetime.strftime(format)` for the directives that chat templates use; others stay as written.
    pub fn format(self, format: &str) -> String {
        let (year, month, day) = self.date();
        let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let weekday = (self.local_seconds.div_euclid(SECONDS_PER_DAY) + 4).rem_euclid(7);
        let seconds = self.local_seconds.rem_euclid(SECONDS_PER_DAY);
        let (hour, minute, second) = (seconds / 3_600, seconds / 60 % 60, seconds % 60);
        let day_of_year = DAYS_BEFORE[month - 1] + day + i64::from(leap && month > 2);
        let weekday_name = usize::try_from(weekday).map_or("", |index| WEEKDAYS[index]);
        let month_name = MONTHS[month - 1];

        let mut out = String::new();
        let mut chars = format.chars().peekable();
        while let Some(c) = chars.next() {
            if c != '%' {
                out.push(c);
                continue;
            }
            let bare = chars.next_if_eq(&'-').is_some();
            let mut number = |value: i64, width: usize| {
                // Writing to a string can't fail.
                let _ = write!(out, "{value:00$}", if bare { 0 } else { width });
            };
            match chars.next() {
                Some('Y') => number(year, 4),
                Some('y') => number(year.rem_euclid(100), 2),
                Some('m') => number(i64::try_from(month).unwrap_or(1), 2),
                Some('d') => number(day, 2),
                Some('H') => number(hour, 2),
                Some('I') => number((hour + 11) % 12 + 1, 2),
                Some('M') => number(minute, 2),
                Some('S') => number(second, 2),
                Some('j') => number(day_of_year, 3),
                Some('w') => number(weekday, 1),
                Some('u') => number((weekday + 6) % 7 + 1, 1),
                Some('e') => {
                    // Writing to a string can't fail.
                    let _ = write!(out, "{day:>2}");
                }
                Some('A') => out.push_str(weekday_name),
                Some('a') => out.extend(weekday_name.chars().take(3)),
                Some('B') => out.push_str(month_name),
                Some('b' | 'h') => out.extend(month_name.chars().take(3)),
                Some('p') => out.push_str(if hour < 12 { "AM" } else { "PM" }),
                Some('F') => out.push_str(&self.format("%Y-%m-%d")),
                Some('T' | 'X') => out.push_str(&self.format("%H:%M:%S")),
                Some('R') => out.push_str(&self.format("%H:%M")),
                Some('D' | 'x') => out.push_str(&self.format("%m/%d/%y")),
                Some('c') => out.push_str(&self.format("%a %b %e %H:%M:%S %Y")),
                Some('Z' | 'z') => {}
                Some('%') => out.push('%'),
                Some(other) => {
                    out.push_str(if bare { "%-" } else { "%" });
                    out.push(other);
                }
                None => out.push('%'),
            }
        }
        out
    }
}

const SECONDS_PER_DAY: i64 = 86_400;
/// Days in 400 years.
const DAYS_PER_ERA: i64 = 146_097;
/// Days from 0000-03-01 to 1970-01-01.
const DAYS_TO_1970: i64 = 719_468;
/// Days of a common year before each month.
const DAYS_BEFORE: [i64; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];
const WEEKDAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_as_python_formats_them() {
        let leap_day = WallTime::new(1_709_209_805, 0);
        assert_eq!(leap_day.format("%Y-%m-%d %H:%M:%S %A %j"), "2024-02-29 12:30:05 Thursday 060");
        assert_eq!(leap_day.format("%d %b %y, %I:%M %p, %-d %% %Q"), "29 Feb 24, 12:30 PM, 29 % %Q");
        assert_eq!(WallTime::new(0, -3_600).format("%c %u"), "Wed Dec 31 23:00:00 1969 3");
        assert_eq!(WallTime::new(1_735_689_599, 1).format("%B %-d, %Y %j"), "January 1, 2025 001");
    }
}
