package job

import (
	"fmt"
	"regexp"
	"strings"
)

// NoteArgs is what the job_submit script notes of a script's arguments and of variables (NAME=value): numbers, options
// and names of variables are legible, anything else is a hash, since AdminComments are shown to all.
func NoteArgs(words []string) string {
	var out []string
	n := 0
	for i, word := range words {
		w := noted(word)
		if n += len(w) + 1; n > mostArgs-10 {
			out = append(out, "~"+noteHash(strings.Join(words[i:], "\x00")))
			break
		}
		out = append(out, w)
	}
	return strings.Join(out, " ")
}

// mostArgs is how many bytes of arguments are noted; the rest is one hash.
const mostArgs = 300

var (
	noteAssigned = regexp.MustCompile(`(?s)^(-?-?[A-Za-z_][\w-]*)=(.*)$`)
	noteAttached = regexp.MustCompile(`^(-[A-Za-z])(\d[\d.]*)$`)
	noteOption   = regexp.MustCompile(`^--?[A-Za-z][\w-]*$`)
	noteNumber   = regexp.MustCompile(`^\.?\d[\d.]*[xX]?\d*[eE]?[-+]?\d*[A-Za-z]?[A-Za-z]?[A-Za-z]?$`)
	noteDigits   = regexp.MustCompile(`(\d+)([A-Za-z]?)`)
)

func noted(word string) string {
	if m := noteAssigned.FindStringSubmatch(word); m != nil && len(m[1]) <= 24 {
		return m[1] + "=" + notedValue(m[2])
	}
	if m := noteAttached.FindStringSubmatch(word); m != nil && len(m[2]) <= 10 {
		return word
	}
	if noteOption.MatchString(word) && len(word) <= 24 {
		return word
	}
	return notedValue(word)
}

func notedValue(v string) string {
	if len(v) <= 10 && noteNumber.MatchString(v) {
		return v
	}
	return hidden(v)
}

// hidden replaces a word by a hash and the numbers in the word, so that numbered names (part_007.csv) are still known
// as a series: "~abcdefgh_007.f".
func hidden(word string) string {
	numbers, n := "", 0
	masked := noteDigits.ReplaceAllStringFunc(word, func(found string) string {
		m := noteDigits.FindStringSubmatch(found)
		if m[2] != "" || len(m[1]) > 8 {
			return found
		}
		numbers += "_" + m[1]
		n++
		return "#"
	})
	if n == 0 || n > 4 {
		return "~" + noteHash(word)
	}
	return "~" + noteHash(masked) + numbers + ".f"
}

// noteHash is a 32-bit hash as eight letters, computed in numbers that every Lua represents exactly.
func noteHash(s string) string {
	h := uint64(5381)
	for _, c := range []byte(s) {
		h = (h*65599 + uint64(c)) % (1 << 32)
	}
	out := ""
	for range 8 {
		out = fmt.Sprintf("%c", 'a'+h%16) + out
		h /= 16
	}
	return out
}
