package appid

import (
	"cmp"
	"math"
	"math/bits"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// meaning is the meaning of a number, by the name of its option, variable or file.
type meaning int

const (
	size   meaning = iota // the amount of work: relatives differ in sizes
	masked                // irrelevant to the work: the number doesn't count
	where                 // where processes meet: the whole value doesn't count
	output                // where results go: counters don't count
	kind                  // the kind of work: another number makes another family
)

// rules give the meaning of a number by the words in its name. The first match decides; without one it is a size.
var rules = []struct {
	means meaning
	at    position
	words string
	why   string
}{
	{masked, atEnd, "seed rng random_state", "other random numbers are as much work"},
	{masked, atEnd, "port", "processes meet there"},
	{
		masked, atEnd, "job job_id jobid slurm run_id runid trial_id uid uuid pid block_id worker_id wandb_id rdzv_id",
		"it distinguishes runs of one application",
	},
	{
		masked, atEnd, "verbose verbosity loglevel log_level log_interval log_every log_freq log_steps logging_steps",
		"it changes what is printed",
	},
	{masked, atEnd, "date timestamp", "it says when, not what"},
	{masked, atEnd, "attempt retry", "it counts repetitions"},
	{masked, inNames, "rep replica replicate fold", "it counts repetitions"},
	{masked, inNames, "chunk shard part split piece", "parts of a whole are alike"},
	{
		kind, anywhere, "gpu gpus device devices cuda thread threads nthreads omp ntomp ntmpi precision bits fp16 bf16 " +
			"amp version level proc procs nproc np worker workers nworkers node nodes rank ranks cpu cpus mode",
		"it is another use of the device",
	},
	{
		kind, anywhere, "tol tolerance eps epsilon threshold accuracy resolution spacing dx dy dz dt timestep",
		"a smaller value is more work, unlike a size",
	},
	{
		kind, atEnd, "run exp experiment case test trial task config conf",
		"a number in a list doesn't say how much work the item is",
	},
	{where, atEnd, "addr address endpoint host hostname master ip scheduler_file", "processes meet there"},
	{output, anywhere, "o out output outdir outfile log logfile logdir save results tensorboard", "results go there"},
	{
		size, anywhere, "n size length steps epochs iterations batch samples layers lr rate decay momentum beta gamma " +
			"temperature",
		"it may be how much work there is",
	},
}

// position is the place in a name where a rule's words match: anywhere (num_gpus), at the end (random_seed, but
// seed_length is a length), or at the end only if the number is part of the name (fold_3; --fold=3 may be an amount).
type position int

const (
	anywhere position = iota
	atEnd
	inNames
)

// shapes match text that never counts. alike are two examples that count as equal. fresh: the name was made for one
// job, so it says nothing about its content.
var shapes = []struct {
	is    *regexp.Regexp
	fresh bool
	alike [2]string
	why   string
}{
	{
		regexp.MustCompile(`\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b`), true,
		[2]string{"7c9e6679-7425-40de-944b-e07fc1f90ae7", "0b1e7f3a-1f52-4f0a-9d3c-5a7b8c9d0e1f"},
		"a UUID distinguishes runs of one application",
	},
	{
		regexp.MustCompile(`\b[a-z]{2,8}://[^/\s,'"]+:\d+`), false,
		[2]string{"tcp://node7:8786", "tcp://node12:40111"},
		"processes meet there",
	},
	{
		regexp.MustCompile(`\b\d{1,3}(\.\d{1,3}){3}(:\d+)?\b|\[(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F]{0,4}\]:\d+`), false,
		[2]string{"10.75.64.5:43267", "[fe80::1]:8786"},
		"processes meet there",
	},
	{
		regexp.MustCompile(`\bblock-\d+(\.\d{9,}(\.\d+)?)?|\bruninfo/\d{3}\b|\b[A-Z]\w*Cluster-\d+`), false,
		[2]string{"block-0.1700000000.123456", "SLURMCluster-11"},
		"it distinguishes workers of a pool",
	},
	{
		regexp.MustCompile(`(?:\b|_)(19|20)\d\d[-_.]?(0[1-9]|1[0-2])[-_.]?(0[1-9]|[12]\d|3[01])` +
			`([-_T.: /]([01]\d|2[0-3])([-_.:h][0-5]\d([-_.:m][0-5]\d)?|[0-5]\d[0-5]\d))?(?:\b|_)`), false,
		[2]string{"20260131", "2025-12-01_13-05-59"},
		"it says when, not what",
	},
	{
		regexp.MustCompile(`\b1[5-9]\d{8}\.\d+\b`), false,
		[2]string{"1700000000.12", "1711111111.3"},
		"it says when, not what",
	},
	{
		regexp.MustCompile(`\b[0-9a-f]{2}/[0-9a-f]{6,}\b|(?:\b|_|\bjob)[0-9a-f]{8,}(?:\b|_)`), true,
		[2]string{"3f/9c1d0e5a7b8c", "a0/11d0e5a7b8ff"},
		"a hash distinguishes runs of one application",
	},
	{
		regexp.MustCompile(`\btmp\.?[A-Za-z0-9][A-Za-z0-9_]{7}([A-Za-z0-9_]{2})?\b`), true,
		[2]string{"tmp.a8Xq0fLm2Z", "tmpq8d2x_ab"},
		"it is a temporary folder",
	},
	{
		regexp.MustCompile(`(?:/tmp|/dev/shm)/([a-z]+[-_.])?\d{5,}`), true,
		[2]string{"/tmp/ann-104417", "/dev/shm/104418"},
		"it is a temporary folder",
	},
	{
		// Shorter numbers need a word before them that marks a name made for one run, unlike model_64.
		regexp.MustCompile(`(?:/tmp|/dev/shm)/(?:slurm|job|jobid|user|uid|pid|tmp|temp|scratch|sess|session|cache|` +
			`dask|ray|spark|joblib|pymp|torch|torchelastic|wandb|ompi|nccl)[-_.]?\d+\b`), true,
		[2]string{"/tmp/dask-1234", "/dev/shm/slurm.88"},
		"it is a temporary folder",
	},
	{
		regexp.MustCompile(`(?:(?:^|\W)(?:/var)?/tmp|/dev/shm)/\d+(?:/|$)`), true,
		[2]string{"/tmp/1234", "/tmp/88"},
		"it is a temporary folder",
	},
}

// ordinary matches words and numbers that only look like hashes or temporary names: deadbeef, 12345e10, tmp_models.
var ordinary = regexp.MustCompile(`^[_/]?([a-z_/]+|[\d/]+(e\d+)?)_?$`)

const (
	sizeMark   = '\x01' // replaces a size in a text
	maskedMark = "\x02" // replaces a masked part
)

// meaningOf returns the meaning of a number after a name, and the reason. within: the number is part of the name.
func meaningOf(name string, within bool) (meaning, string) {
	name = strings.ToLower(camel.ReplaceAllString(name, "${1}_$2"))
	parts := strings.FieldsFunc(name, func(r rune) bool { return strings.ContainsRune("-+_.= ", r) })
	if len(parts) == 0 {
		return size, ""
	}
	if stem := strings.TrimRight(parts[len(parts)-1], "0123456789"); len(stem) > 2 {
		parts[len(parts)-1] = stem // seed1
	}
	all := "_" + strings.Join(parts, "_") + "_"
	for _, r := range rules {
		for word := range strings.FieldsSeq(r.words) {
			found := strings.HasSuffix(all, "_"+word+"_")
			if r.at == anywhere {
				found = strings.Contains(all, "_"+word+"_")
			}
			if found && (within || r.at != inNames) {
				return r.means, r.why
			}
		}
	}
	return size, ""
}

var camel = regexp.MustCompile(`([a-z])([A-Z])`)

// quantity matches a number with a unit, or a grid.
var quantity = regexp.MustCompile(`^([0-9]+(?:[xX][0-9]+)+|[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]{1,2})?)` +
	`([kKmMgGtT]?)(i?[bB]|i)?$`)

// parseQuantity reads 4096, 1e6, 4k, 2GiB, 64x64x32. k is 1000, ki and GiB are powers of 1024; only ratios matter. It
// rejects numbers that aren't positive, and dates.
func parseQuantity(s string) (float64, bool) {
	m := quantity.FindStringSubmatch(s)
	if m == nil || len(s) > 32 || len(s) == 8 && (strings.HasPrefix(s, "19") || strings.HasPrefix(s, "20")) {
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
	v *= math.Pow(unit, float64(strings.Index("-kmgt", strings.ToLower(cmp.Or(m[2], "-")))))
	return v, v > 0 && !math.IsInf(v, 0)
}

// value returns the value of an option or variable with sizes marked and parts masked.
func (r *reader) value(name, value string, how naming) string {
	means, why := meaningOf(name, false)
	if m := dated.FindStringSubmatch(value); m != nil && means != masked {
		if t, err := time.Parse("20060102", m[1]+m[2]+m[3]); err == nil {
			r.dates = append(r.dates, t)
		}
	}
	value = r.shaped(value)
	v, isNumber := parseQuantity(value)
	switch {
	case value == "":
		return value
	case means == where && !isNumber, means == masked && (isNumber || strings.Trim(value, "0123456789.eE+-") == ""):
		return r.mask(name+" "+value, why)
	case means == kind:
		return r.named(value, naming{})
	case isNumber:
		return r.size(name, v)
	}
	how.row = how.row && means == output
	dir, stem, ending := cutPath(value)
	how.sizes = how.sizes && (dir != "" || ending != "") && !settings[strings.TrimPrefix(ending, ".")]
	how.ending = ending
	return r.named(dir, naming{}) + r.named(stem, how) + ending
}

// dated matches a date, perhaps with a time of day.
var dated = regexp.MustCompile(`^(\d{4})[-_.]?(\d\d)[-_.]?(\d\d)(?:[-_T.: ]\d\d[-_.:hm\d]*)?$`)

// period marks the days from the first of a script's dates to the last as a size; shaped masks the dates. A forecast
// of three days differs from a forecast of a year, but tomorrow's is as much work as today's.
func (r *reader) period() string {
	if len(r.dates) < 2 {
		return ""
	}
	slices.SortFunc(r.dates, time.Time.Compare)
	return "\ndays " + r.size("days", 1+r.dates[len(r.dates)-1].Sub(r.dates[0]).Hours()/24)
}

// naming says how to treat the numbers in a name.
type naming struct {
	sizes  bool   // mark sizes
	row    bool   // mask counters
	files  bool   // mask counters with leading zeros, as in long lists of files
	ending string // the file's
}

var digits = regexp.MustCompile(`[0-9]+(?:[xX][0-9]+)+|[0-9]+(?:\.[0-9]+)?`)

// before matches the name in front of a number within a name: seed_1, fold=3.
var before = regexp.MustCompile(`[A-Za-z][A-Za-z_-]*[-_=]?$`)

// maxBefore bounds the text that before is matched against, since a word may have thousands of numbers.
const maxBefore = 64

func (r *reader) shaped(s string) string {
	for _, shape := range shapes {
		s = shape.is.ReplaceAllStringFunc(s, func(found string) string {
			if shape.fresh && ordinary.MatchString(found) {
				return found
			}
			r.fresh = r.fresh || shape.fresh
			return r.mask(found, shape.why)
		})
	}
	return s
}

// named returns a name with sizes marked and parts masked. A number before a letter is part of a word, as in h2o.
func (r *reader) named(s string, how naming) string {
	s = r.shaped(s)
	var out strings.Builder
	var sizes []float64
	at := 0
	for _, m := range digits.FindAllStringIndex(s, -1) {
		text := s[m[0]:m[1]]
		unit := ""
		rest := s[m[1]:]
		if rest != "" && strings.ContainsRune("kKmMgGtT", rune(rest[0])) {
			unit = rest[:1]
			rest = rest[1:]
		}
		if rest != "" && letter(rest[0]) {
			continue
		}
		of := before.FindString(s[max(0, m[0]-maxBefore):m[0]])
		means, why := meaningOf(of, true)
		apart := m[0] == 0 || !letter(s[m[0]-1]) || means == kind
		v, ok := parseQuantity(text + unit)
		counter := len(text) > 2 && text[0] == '0' && !strings.Contains(text, ".")
		row := how.row && unit == "" && apart && (!amount(text, v) || v >= 1e5)
		switch {
		case of != "" && (means == masked || means == where):
			out.WriteString(s[at:m[0]] + r.mask(of+text, why))
		case counter && how.files, row:
			out.WriteString(s[at:m[0]] + r.mask(text, "it is a counter"))
		case how.sizes && ok && means != kind && !counter && (unit != "" || amount(text, v)):
			out.WriteString(s[at:m[0]] + string(sizeMark))
			sizes = append(sizes, v)
			text += unit
		default:
			continue
		}
		at = m[0] + len(text)
	}
	pattern := out.String() + s[at:]
	for _, v := range sizes {
		r.size("file "+Legible(pattern)+how.ending, v)
	}
	return pattern
}

// amount reports whether a number in a name is likely an amount, not a counter.
func amount(text string, v float64) bool {
	return v >= 100 && v < 1e7 || strings.ContainsAny(text, "xX") ||
		v >= 16 && v == math.Trunc(v) && bits.OnesCount64(uint64(v)) == 1
}

// folder returns a folder's path with sizes marked and parts masked.
func (r *reader) folder(path string) string {
	parts := strings.Split(r.shaped(path), "/")
	for i, p := range parts {
		parts[i] = r.named(p, naming{sizes: true})
	}
	return strings.Join(parts, "/")
}

func letter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

// settings are endings of files with names that say what is done, not how much.
var settings = set("yaml yml toml cfg conf ini json py sh lua jl R so sif exe bin")

// cutPath cuts a word into a folder with its slash or "", a name, and an ending of up to eight letters or "".
func cutPath(w string) (dir, stem, ending string) {
	i := strings.LastIndexByte(strings.TrimRight(w, "/"), '/')
	dir = w[:i+1]
	stem = w[i+1:]
	if j := strings.LastIndexByte(stem, '.'); j > 0 && len(stem)-j > 1 && len(stem)-j <= 9 &&
		strings.Trim(stem[j:], ".0123456789eE") != "" {
		return dir, stem[:j], stem[j:]
	}
	return dir, stem, ""
}

func (r *reader) mask(text, why string) string {
	if len(r.masked) < maxSizes && text != "" {
		r.masked = append(r.masked, Masked{shortName(text), why})
	}
	return maskedMark
}

func (r *reader) size(name string, v float64) string {
	r.sizes = append(r.sizes, Size{Name: shortName(name), Value: v})
	return string(sizeMark)
}

// shortName turns a user's text into one that is safe to show and store.
func shortName(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, s)
	return s[:min(len(s), 40)]
}
