// Package text is the one reader of what Slurm's commands print: requests for generic
// resources, times, host lists, records of key=value, the rows of squeue and sacct,
// dependency lists and error messages. Every function is pure and takes any bytes;
// package slurm runs the commands.
//
// Users write parts of these texts (names, comments, features, accounts), so each
// reader states how it keeps such text from being taken for Slurm's own.
package text

import (
	"crypto/rand"
	"iter"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// maxCount bounds counts, so that no sum of a few overflows.
const maxCount = 1 << 30

// maxComment is how much of a comment is kept, bytes.
const maxComment = 1024

// NewNonce draws a mark that no user can foresee. It begins with neither a digit nor a
// dot, which squeue's format would take for a width, and holds no comma.
func NewNonce() string { return "~" + rand.Text()[:12] }

// IsNone reports whether a value is one that Slurm prints for none.
func IsNone(s string) bool {
	switch s {
	case "", "N/A", "(null)", "None", "NONE", "n/a", "Unknown":
		return true
	}
	return false
}

// ValidRef reports whether a name is that of a job or an array task and nothing else.
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

// Option finds a word of a comma-separated list, with its value where it is
// word=value. Case does not matter; as in Slurm the first of several counts.
func Option(list, word string) (value string, there bool) {
	for w := range strings.SplitSeq(list, ",") {
		name, value, _ := strings.Cut(strings.TrimSpace(w), "=")
		if strings.EqualFold(name, word) {
			return value, true
		}
	}
	return "", false
}

// HasOption reports whether a comma-separated list holds a word.
func HasOption(list, word string) bool {
	_, there := Option(list, word)
	return there
}

// PrivateJobs reports whether PrivateData, as `scontrol show config` prints it, hides jobs of other
// users: "accounts,jobs,usage", or "all".
func PrivateJobs(list string) bool { return private(list, "jobs") }

// PrivateUsage reports whether it hides the usage of other users.
func PrivateUsage(list string) bool { return private(list, "usage") }

func private(list, what string) bool {
	return slices.ContainsFunc(strings.Split(strings.ToLower(list), ","), func(w string) bool {
		w = strings.TrimSpace(w)
		return w == what || w == "all"
	})
}

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

// OneLine makes what a command complained of fit a log line.
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

// leading reads the number that a value begins with, such as the 1 of "1-4" nodes, and
// returns what follows it.
func leading[T string | []byte](b T) (n int64, rest T) {
	i := 0
	for i < len(b) && i < 18 && b[i] >= '0' && b[i] <= '9' {
		n = n*10 + int64(b[i]-'0')
		i++
	}
	return n, b[i:]
}

// number is the count that a value begins with.
func number[T string | []byte](b T) int {
	n, _ := leading(b)
	return int(min(n, maxCount))
}

// items yields the parts of a list separated by commas outside of parentheses and
// brackets.
func items(list string) iter.Seq[string] {
	return func(yield func(string) bool) {
		depth, from := 0, 0
		for i := range len(list) {
			switch list[i] {
			case '(', '[':
				depth++
			case ')', ']':
				depth = max(0, depth-1)
			case ',':
				if depth == 0 {
					if !yield(list[from:i]) {
						return
					}
					from = i + 1
				}
			}
		}
		yield(list[from:])
	}
}
