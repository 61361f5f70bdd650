package appid

import (
	"math"
	"regexp"
	"strconv"
	"strings"
)

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
	outputs = "o out output outdir outfile log logfile logdir save checkpoint ckpt results name prefix tensorboard"
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
	for _, part := range strings.FieldsFunc(strings.ToLower(name), func(r rune) bool { return r == '-' || r == '_' || r == '.' }) {
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
