// Package text parses the output of Slurm's commands: requests for generic resources, times, host lists, records of
// key=value, rows of squeue and sacct, dependency lists and error messages. The functions are pure, for any input.
//
// Users write parts of this output (names, comments, features, accounts), so each parser states how it keeps users'
// text apart from Slurm's own.
package text

import (
	"bytes"
	"crypto/rand"
	"math"
	"strconv"
	"strings"
	"time"
)

// maxCount bounds counts, so that no sum of a few overflows.
const maxCount = 1 << 30

// maxComment bounds the bytes kept of a comment.
const maxComment = 1024

// NewNonce draws a mark that no user can predict. It is valid in squeue's format: no comma, no digit or dot in front.
func NewNonce() string { return "~" + rand.Text()[:12] }

// IsNone reports whether Slurm prints this value for "none" or "unknown".
func IsNone(s string) bool {
	switch s {
	case "", "N/A", "(null)", "None", "NONE", "n/a", "Unknown":
		return true
	}
	return false
}

// ValidRef reports whether a string is exactly the name of a job or an array task.
func ValidRef(ref string) bool {
	id, task, isTask := strings.Cut(ref, "_")
	if n, ok := digits(id); !ok || n < 1 || n > math.MaxUint32 {
		return false
	}
	if isTask {
		n, err := strconv.ParseUint(task, 10, 32)
		return err == nil && strconv.FormatUint(n, 10) == task
	}
	return true
}

// Option finds a word in a comma-separated list, and its value if the item is word=value. Case does not matter; as in
// Slurm the first of several matches counts.
func Option(list, word string) (value string, there bool) {
	for w := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(w), "=")
		if strings.EqualFold(name, word) {
			return value, true
		}
	}
	return "", false
}

// HasOption reports whether a comma-separated list contains a word.
func HasOption(list, word string) bool {
	_, there := Option(list, word)
	return there
}

// HasPlugin reports whether a list of plugins has "job_submit/lua", say; many lists also accept the short form "lua".
func HasPlugin(list, plugin string) bool {
	_, name, _ := strings.Cut(plugin, "/")
	return HasOption(list, plugin) || HasOption(list, name)
}

// Private reports whether PrivateData, as `scontrol show config` prints it, hides "jobs" or "usage" of other users:
// "accounts,jobs,usage", or "all".
func Private(list, what string) bool { return HasOption(list, what) || HasOption(list, "all") }

// User reads a user as `scontrol show config` prints it: "slurm(64030)".
func User(s string) (name string, uid uint32, hasUID bool) {
	name, in, _ := strings.Cut(s, "(")
	n, ok := digits(strings.TrimSuffix(in, ")"))
	return name, uint32(n), ok && n <= math.MaxUint32
}

// Seconds reads a setting in seconds: "300 sec" or "20".
func Seconds(s string) (time.Duration, bool) {
	value, _, _ := strings.Cut(s, " ")
	d, err := time.ParseDuration(value + "s")
	return d, err == nil
}

// OneLine turns standard error into one line for a log, cut off at 1,000 bytes.
func OneLine(s string) string {
	s = strings.Join(strings.FieldsFunc(s, func(r rune) bool { return r == '\n' || r == '\r' }), "; ")
	if len(s) > 1000 {
		s = s[:1000] + "…"
	}
	return s
}

// digits reads a non-negative decimal number of at most 18 digits.
func digits[T string | []byte](b T) (n int64, ok bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	for i := range len(b) {
		if b[i] < '0' || b[i] > '9' {
			return 0, false
		}
		n = n*10 + int64(b[i]-'0')
	}
	return n, true
}

// leading reads the number at the beginning of a value, such as the 1 of "1-4" nodes, and returns the rest as well.
func leading[T string | []byte](b T) (n int64, rest T) {
	i := 0
	for i < len(b) && i < 18 && b[i] >= '0' && b[i] <= '9' {
		n = n*10 + int64(b[i]-'0')
		i++
	}
	return n, b[i:]
}

// number returns the count at the beginning of a value.
func number[T string | []byte](b T) int {
	n, _ := leading(b)
	return int(min(n, maxCount))
}

// stamp is Slurm's own format of a time.
const stamp = "2006-01-02T15:04:05"

// parseTime reads a time in seconds since 1970, as squeue prints it with SLURM_TIME_FORMAT=%s, or in Slurm's own format
// (in UTC, since the commands run with TZ=UTC). Anything else, e.g. N/A or a site's own format, is the zero time.
func parseTime(b []byte) time.Time {
	if n, ok := digits(b); ok {
		if n == 0 || n >= math.MaxUint32-1 { // NO_VAL, INFINITE
			return time.Time{}
		}
		return time.Unix(n, 0)
	}
	if len(b) == len(stamp) {
		if t, err := time.Parse(stamp, string(b)); err == nil {
			return t
		}
	}
	return time.Time{}
}

// maxSeconds is the longest duration that is accepted, some 140 years.
const maxSeconds = 1 << 32

// ParseDuration reads [days-][hours:]minutes:seconds[.fraction], or days-hours.
func ParseDuration(s []byte) (time.Duration, bool) {
	days, clock, hasDays := bytes.Cut(s, []byte{'-'})
	if !hasDays {
		days = []byte{'0'}
		clock = s
	}
	clock, fraction, hasFraction := bytes.Cut(clock, []byte{'.'})
	d, ok := digits(days)
	var v [3]int64
	n := 0
	for more := true; more; n++ {
		var part []byte
		if n == len(v) {
			return 0, false
		}
		part, clock, more = bytes.Cut(clock, []byte{':'})
		isNumber := false
		v[n], isNumber = digits(part)
		ok = ok && isNumber && v[n] < 1e12 && (n == 0 || v[n] < 60)
	}
	switch {
	case n == 2 && !hasDays: // minutes:seconds
		v = [3]int64{0, v[0], v[1]}
	case n == 1 && (!hasDays || hasFraction):
		return 0, false
	}
	seconds := ((d*24+v[0])*60+v[1])*60 + v[2]
	if !ok || d > 1e6 || seconds > maxSeconds {
		return 0, false
	}
	total := time.Duration(seconds) * time.Second
	if hasFraction {
		f, err := strconv.ParseUint(string(fraction), 10, 63)
		if err != nil || len(fraction) > 9 {
			return 0, false
		}
		total += time.Duration(float64(f) * math.Pow10(9-len(fraction)))
	}
	return total, true
}

// parseLimit reads a time limit; 0 = UNLIMITED or unreadable.
func parseLimit(b []byte) time.Duration {
	d, _ := ParseDuration(b)
	return d
}

// ParseMiB reads an amount of memory such as 100M, 1.50G or 4096 (MiB); 0 = unreadable.
func ParseMiB[T string | []byte](b T) float64 {
	s := string(b)
	unit := 1.0
	if n := len(s) - 1; n >= 0 {
		if i := strings.IndexByte("KMGTPE", s[n]&^0x20); i >= 0 {
			unit = math.Pow(1024, float64(i-1))
			s = s[:n]
		}
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || strings.Trim(s, "0123456789.") != "" {
		return 0
	}
	return v * unit
}
