package text

import (
	"bytes"
	"math"
	"strconv"
	"strings"
	"time"
)

// stamp is Slurm's own format of a time.
const stamp = "2006-01-02T15:04:05"

// parseTime reads a time as squeue prints it with SLURM_TIME_FORMAT=%s, in seconds
// since 1970, or in Slurm's own format (UTC, since the commands run with TZ=UTC).
// Anything else, such as N/A, Unknown or a format that the site forces, is the zero
// time.
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

// maxSeconds is the longest duration that is read, s: some 140 years.
const maxSeconds = 1 << 32

// ParseDuration reads [days-][hours:]minutes:seconds[.fraction], or days-hours.
func ParseDuration(s []byte) (time.Duration, bool) {
	days, clock, hasDays := bytes.Cut(s, []byte{'-'})
	if !hasDays {
		days, clock = []byte{'0'}, s
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

// parseLimit reads a time limit. UNLIMITED and what can't be read are 0.
func parseLimit(b []byte) time.Duration {
	d, _ := ParseDuration(b)
	return d
}

// ParseMiB reads an amount of memory such as 100M, 1.50G or 4096 (MiB); 0 where it can't be read.
func ParseMiB(s string) float64 { return parseMiB([]byte(s)) }

// parseMiB reads an amount of memory such as 100M, 1.50G or 4096 (MiB); 0 where it
// can't be read.
func parseMiB(b []byte) float64 {
	v, unit, ok := size(b)
	switch {
	case !ok:
		return 0
	case unit == 0:
		return v
	}
	return v * unit / (1 << 20)
}

// ParseBytes reads an amount such as 40777023488 or 38888M.
func ParseBytes(s string) (float64, bool) {
	v, unit, ok := size([]byte(s))
	return v * max(unit, 1), ok
}

// size reads a number and its unit, a power of 1024; 0 = it has none.
func size(b []byte) (v, unit float64, ok bool) {
	if n := len(b) - 1; n >= 0 {
		if i := strings.IndexByte("KMGTPE", b[n]&^0x20); i >= 0 {
			unit, b = math.Pow(1024, float64(i+1)), b[:n]
		}
	}
	for _, c := range b {
		if (c < '0' || c > '9') && c != '.' {
			return 0, 0, false
		}
	}
	v, err := strconv.ParseFloat(string(b), 64)
	return v, unit, err == nil
}
