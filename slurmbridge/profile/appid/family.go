package appid

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// maxSizes bounds the sizes of a family; a script with more numbers has no relatives.
const maxSizes = 32

// family finds what a script has in common with the same script for another size
// of its problem: itself, with the numbers of its programs' arguments masked. name
// is the last program's.
type family struct {
	text  strings.Builder
	sizes []Size
	name  string
}

func newFamily(lines []string) *family {
	f := &family{}
	for _, l := range lines {
		for _, words := range commands(l) {
			f.command(words)
		}
		f.text.WriteByte('\n')
	}
	return f
}

// key is short and stable; "" where there is no program or too many numbers.
func (f *family) key() string {
	if f.name == "" || len(f.sizes) > maxSizes {
		return ""
	}
	sum := sha256.Sum256([]byte(f.text.String()))
	return f.name + "~" + hex.EncodeToString(sum[:6])
}

// command adds one command.
func (f *family) command(words []string) {
	if list := assigned(words); len(list) < len(words) && len(list) == 0 {
		f.assignments(words)
		return
	}
	if words[0] == "export" || words[0] == "declare" || words[0] == "local" || words[0] == "readonly" {
		f.put(words[0])
		f.assignments(words[1:])
		return
	}
	program, args, own := unwrap(words)
	name := clean(program)
	if b := base(words[0]); program == "" || name == "" || word[b] || strings.HasPrefix(b, "$") {
		for _, w := range words {
			if words[0] == "cd" || words[0] == "mkdir" {
				w = masked(w)
			}
			f.put(w)
		}
		return
	}
	f.name = name
	for _, w := range own {
		f.put(w)
	}
	f.arguments(args)
}

// put adds a word as it is. Bytes that a word can't have separate words and
// mark sizes.
func (f *family) put(w string) {
	if strings.ContainsAny(w, "\x00\x01") {
		w = strings.NewReplacer("\x00", "?", "\x01", "?").Replace(w)
	}
	f.text.WriteString(w)
	f.text.WriteByte(0)
}

func (f *family) size(name string, v float64) {
	if len(f.sizes) <= maxSizes {
		f.sizes = append(f.sizes, Size{Name: shortName(name), Value: v})
	}
	f.text.WriteByte(1)
	f.put(name)
}

// shortName makes of an option's name what can be shown and kept: it is what a user
// wrote.
func shortName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 40)]
}

func (f *family) assignments(words []string) {
	for _, w := range words {
		name, value, ok := strings.Cut(w, "=")
		if !ok || !f.value(name, value) {
			f.put(w)
		}
	}
}

// arguments adds a program's arguments: sizes, files, and the rest as it is.
func (f *family) arguments(args []string) {
	option, place := "", 0
	for _, w := range args {
		dashed := len(w) > 1 && w[0] == '-' && !numeric(w[1:])
		name, value, assigned := strings.Cut(w, "=")
		switch {
		case dashed && assigned:
			if !f.value(name, value) {
				f.put(w)
			}
			option = ""
		case dashed:
			// -n1000 is -n 1000.
			if len(w) > 2 && w[1] != '-' && numeric(w[2:]) {
				if !f.value(w[:2], w[2:]) {
					f.put(w)
				}
				option = ""
				break
			}
			f.put(w)
			option = w
		default:
			place++
			switch {
			case assigned && variable(strings.ReplaceAll(strings.TrimLeft(name, "+"), ".", "_")) && f.value(name, value):
			case option != "" && f.value(option, w):
			case option == "" && f.value("argument "+strconv.Itoa(place), w):
			default:
				f.put(w)
			}
			option = ""
		}
	}
}

func numeric(s string) bool {
	_, ok := parseQuantity(s)
	return ok
}

// value adds the value of an option or a variable where it is a size, a file, or of
// no account; else it returns false, and the word stays.
func (f *family) value(name, value string) bool {
	plain := strings.TrimLeft(name, "-+")
	means := meaning(plain)
	v, ok := parseQuantity(value)
	switch {
	case means == "output":
		f.put(name + "=" + masked(value))
		return true
	case means == "identity":
		return false
	case means == "indifferent" && (ok || strings.Trim(value, "0123456789.eE+-") == ""):
		f.put(name + "=%")
		return true
	case ok && !dated(value):
		f.size(name, v)
		return true
	}
	stem, ending, isFile := file(value)
	if !isFile || ending != "" && among(settings, ending[1:]) || strings.Contains(value, "$") {
		return false
	}
	pattern, sizes := fileSizes(stem)
	f.put(name + "=" + strings.TrimSuffix(value, stem+ending) + pattern + ending)
	for _, v := range sizes {
		f.size("file "+pattern+ending, v)
	}
	return true
}
