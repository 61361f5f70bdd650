package appid

import (
	"crypto/sha256"
	"encoding/hex"
	"math"
	"path"
	"regexp"
	"slices"
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
	here := "" // what ends the here document that lines are in
	for _, l := range lines {
		if strings.HasPrefix(l, "#") || here != "" && strings.ContainsAny(l, "#<>") {
			f.put(l) // in a here document: no comment, and no redirection
		} else {
			for _, words := range commands(l) {
				f.command(words)
			}
		}
		if m := hereDocument.FindStringSubmatch(l); here == "" && m != nil {
			here = m[1]
		} else if l == here {
			here = ""
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
			switch words[0] {
			case "cd":
				f.folder(w)
			case "mkdir":
				f.put(masked(w))
			default:
				f.put(w)
			}
		}
		return
	}
	f.name = name
	for _, w := range own {
		f.put(w)
	}
	f.arguments(args)
}

// folder adds one that a script works in: water_24k is an input with a size, run22 or a day is neither.
func (f *family) folder(w string) {
	name := base(w)
	if name == "" || runs.MatchString(name) || slices.ContainsFunc(digits.FindAllString(name, -1), dated) {
		f.put(masked(w))
		return
	}
	pattern, sizes := fileSizes(name)
	f.put(masked(strings.TrimSuffix(strings.TrimSuffix(w, "/"), name)) + pattern)
	for _, v := range sizes {
		f.size("folder "+pattern, v)
	}
}

// runs matches folders' names that number runs.
var runs = regexp.MustCompile(`^(?i)(runs?|exp|experiment|job|trial|rep|replica|out|output|results?|test|tmp|try|seed|task|array)?[-_.0-9]*$`)

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
	case means == "output" && (!ok || dated(value)):
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

// Size is one of the numbers in which the members of a family differ.
type Size struct {
	Name  string  `json:"name"`  // the option, variable, or file that it belongs to
	Value float64 `json:"value"` // > 0; a grid of 64x64x32 counts as its product
}

// An option's name says what its number means, in lower case and cut at its
// dashes, dots and underscores. Names that are in neither list are sizes.
const (
	// What changes the outcome and not the work: the number is masked.
	indifferent = "seed rng port run runid id jobid job trial lr rate momentum decay wd dropout temperature temp tol eps epsilon beta gamma alpha interval freq log verbose verbosity date tag wandb checkpoint"
	// What makes it another use of the device: the number stays.
	identity = "gpu gpus device devices cuda thread threads nthreads omp ntomp ntmpi precision bits fp16 bf16 amp version level proc procs nproc np worker workers node nodes rank ranks cpu cpus mode"
	// Where results go: digits are masked.
	outputs = "o out output outdir outfile log logfile logdir save results tensorboard"
	// With one of these a name is a run's; without, a model's.
	named = "run exp experiment wandb job project trial"
)

// quantity is a number with its unit, or a grid.
var quantity = regexp.MustCompile(`^([0-9]+(?:[xX][0-9]+)+|[0-9]*\.?[0-9]+(?:[eE][+]?[0-9]{1,2})?)([kKmMgGtT]?)(i?[bB]|i)?$`)

// parseQuantity reads 4096, 1e6, 4k, 2GiB, 64x64x32. k is 1000, ki and GiB are
// powers of 1024; only ratios matter. It must be positive.
func parseQuantity(s string) (float64, bool) {
	if len(s) > 32 {
		return 0, false
	}
	m := quantity.FindStringSubmatch(s)
	if m == nil {
		return 0, false
	}
	v := 1.0
	for _, part := range strings.FieldsFunc(m[1], func(r rune) bool { return r == 'x' || r == 'X' }) {
		f, err := strconv.ParseFloat(part, 64)
		if err != nil {
			return 0, false
		}
		v *= f
	}
	unit := 1000.0
	if strings.HasPrefix(m[3], "i") {
		unit = 1024
	}
	switch strings.ToLower(m[2]) {
	case "k":
		v *= unit
	case "m":
		v *= unit * unit
	case "g":
		v *= unit * unit * unit
	case "t":
		v *= unit * unit * unit * unit
	}
	return v, v > 0 && !math.IsInf(v, 0)
}

// meaning of an option's name: one of the three lists, "" = a size.
func meaning(name string) string {
	parts := strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '-' || r == '_' || r == '.' })
	if len(parts) == 1 && (parts[0] == "name" || parts[0] == "prefix") {
		return "output"
	}
	if slices.Contains(parts, "name") && slices.ContainsFunc(parts, func(p string) bool { return among(named, p) }) {
		return "output"
	}
	for _, part := range parts {
		switch {
		case among(outputs, part):
			return "output"
		case among(indifferent, part):
			return "indifferent"
		case among(identity, part):
			return "identity"
		}
	}
	return ""
}

// settings are files with names that say what is done, not with how much.
const settings = "yaml yml toml cfg conf ini json py sh lua jl R so sif exe bin"

// file reports whether a word looks like the name of a file, and cuts its ending.
func file(w string) (stem, ending string, ok bool) {
	b := base(w)
	if i := strings.LastIndexByte(b, '.'); i > 0 && i < len(b)-1 && len(b)-i <= 9 {
		ending = b[i:]
		if strings.Trim(ending, ".0123456789eE") != "" {
			return b[:i], ending, true
		}
	}
	return b, "", strings.Contains(w, "/") && b != ""
}

var digits = regexp.MustCompile(`[0-9]+(?:[xX][0-9]+)+|[0-9]+(?:\.[0-9]+)?`)

// dated reports whether a run of digits is a day: that is no size.
func dated(s string) bool {
	return len(s) == 8 && (strings.HasPrefix(s, "19") || strings.HasPrefix(s, "20"))
}

// fileSizes returns a file's name with the sizes in it masked, and the sizes. A
// number that a letter follows (h2o, fp16x) is part of a word; one with a leading
// zero counts files, which are taken to be alike.
func fileSizes(stem string) (string, []float64) {
	var out strings.Builder
	var sizes []float64
	at := 0
	for _, m := range digits.FindAllStringIndex(stem, -1) {
		from, to := m[0], m[1]
		text := stem[from:to]
		unit := ""
		if to < len(stem) && strings.ContainsRune("kKmMgGtT", rune(stem[to])) {
			unit = stem[to : to+1]
		}
		if next := to + len(unit); next < len(stem) && letter(stem[next]) || dated(text) {
			continue
		}
		v, ok := parseQuantity(text + unit)
		switch {
		case len(text) > 1 && text[0] == '0' && !strings.Contains(text, "."):
			out.WriteString(stem[at:from] + "%")
		case ok:
			out.WriteString(stem[at:from] + "#")
			sizes = append(sizes, v)
		default:
			continue
		}
		at = to + len(unit)
	}
	return out.String() + stem[at:], sizes
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// masked puts a mark in place of each run of digits.
func masked(s string) string { return digits.ReplaceAllString(s, "%") }

// commands splits a line of shell into its simple commands, and each into words
// without their quotes. It runs nothing and expands nothing; what is unbalanced
// ends with the line. Where output goes is left out: it changes nothing. A file that is
// the input is the last word.
func commands(line string) [][]string {
	var (
		out   [][]string
		words []string
		word  strings.Builder
		begun bool // a word has begun, if only by a quote
		drop  bool // the next word is where output goes
		input bool // the next word is the input
		last  []string
	)
	end := func() {
		switch {
		case begun && input:
			last = append(last, word.String())
		case begun && !drop:
			words = append(words, word.String())
		}
		if begun {
			drop, input = false, false
		}
		word.Reset()
		begun = false
	}
	stop := func() {
		end()
		if len(words) > 0 {
			out = append(out, append(words, last...))
		}
		words, last, drop, input = nil, nil, false, false
	}
	for i := 0; i < len(line); i++ {
		switch c := line[i]; c {
		case ' ', '\t':
			end()
		case ';', '|', '&', '(', ')':
			if c == '&' && i+1 < len(line) && line[i+1] == '>' {
				continue // &> is a redirection
			}
			stop()
		case '<', '>':
			// A number right before it names the stream.
			if strings.Trim(word.String(), "012") == "" {
				word.Reset()
				begun = false
			}
			end()
			from := i
			for i+1 < len(line) && (line[i+1] == c || line[i+1] == '&' || line[i+1] == '|') {
				i++
			}
			// < FILE and <<< WORD are input; <<EOF has its own in the lines that follow, <&3 is another stream.
			op := line[from : i+1]
			input = op == "<" || op == "<<<"
			drop = !input
		case '#':
			if !begun {
				stop()
				return out // a comment
			}
			word.WriteByte(c)
		case '\\':
			if i+1 < len(line) {
				i++
				word.WriteByte(line[i])
			}
			begun = true
		case '\'', '"', '`':
			j := closing(line, i)
			if c == '`' {
				word.WriteString(line[i:min(j+1, len(line))])
			} else {
				word.WriteString(line[i+1 : j])
			}
			begun, i = true, j
		case '$':
			j := i
			if i+1 < len(line) && (line[i+1] == '(' || line[i+1] == '{') {
				j = bracket(line, i+1)
			}
			word.WriteString(line[i:min(j+1, len(line))])
			begun, i = true, j
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	stop()
	return out
}

// closing returns where the quote that opens at i closes, the line's end where it
// doesn't.
func closing(line string, i int) int {
	for j := i + 1; j < len(line); j++ {
		switch {
		case line[j] == '\\' && line[i] != '\'':
			j++
		case line[j] == line[i]:
			return j
		}
	}
	return len(line)
}

// bracket is closing for the ( or { at i; brackets within it count, quotes don't.
func bracket(line string, i int) int {
	shut := byte(')')
	if line[i] == '{' {
		shut = '}'
	}
	depth := 0
	for j := i; j < len(line); j++ {
		switch line[j] {
		case line[i]:
			depth++
		case shut:
			if depth--; depth == 0 {
				return j
			}
		}
	}
	return len(line)
}

// base is the last part of a path, "" where there is none.
func base(s string) string {
	if b := path.Base(s); b != "." && b != "/" && b != ".." {
		return b
	}
	return ""
}
