package slurm

import (
	"math"
	"strconv"
	"strings"
	"time"
)

// parseTime reads a time as Slurm's commands print it with SLURM_TIME_FORMAT=%s,
// in seconds since 1970, or in their default format (UTC, since the commands run
// with TZ=UTC). Anything else, such as N/A, Unknown or a format that the site
// forces, is the zero time.
func parseTime(b []byte) time.Time {
	if n, ok := digits(b); ok {
		if n == 0 || n >= math.MaxUint32-1 { // NO_VAL, INFINITE
			return time.Time{}
		}
		return time.Unix(n, 0)
	}
	if len(b) == len("2006-01-02T15:04:05") {
		if t, err := time.Parse("2006-01-02T15:04:05", string(b)); err == nil {
			return t
		}
	}
	return time.Time{}
}

// parseLimit reads [days-]hours:minutes:seconds, minutes:seconds or days-hours.
// UNLIMITED and what can't be read are 0.
func parseLimit(s string) time.Duration {
	days, rest, has := strings.Cut(s, "-")
	var d int64
	if has {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0
		}
		d = int64(n)
		s = rest
	}
	var v [3]int64 // hours, minutes, seconds
	n := 0
	for more := true; more; n++ {
		var part string
		if part, s, more = strings.Cut(s, ":"); n == len(v) {
			return 0
		}
		x, err := strconv.ParseUint(part, 10, 24)
		if err != nil {
			return 0
		}
		v[n] = int64(x)
	}
	switch {
	case n == 1 && !has:
		return 0
	case n == 2 && !has: // minutes:seconds
		v = [3]int64{0, v[0], v[1]}
	}
	return time.Duration((d*24+v[0])*3600+v[1]*60+v[2]) * time.Second
}

// digits reads a non-negative decimal number that fits 63 bits.
func digits(b []byte) (int64, bool) {
	if len(b) == 0 || len(b) > 18 {
		return 0, false
	}
	n := int64(0)
	for _, c := range b {
		if c < '0' || c > '9' {
			return 0, false
		}
		n = n*10 + int64(c-'0')
	}
	return n, true
}

// leading reads the number a value begins with, such as the 1 of "1-4" nodes or
// the 100 of "100M", and returns what is behind it.
func leading(b []byte) (n int64, rest []byte) {
	i := 0
	for i < len(b) && i < 18 && b[i] >= '0' && b[i] <= '9' {
		n = n*10 + int64(b[i]-'0')
		i++
	}
	return n, b[i:]
}

// parseMiB reads an amount of memory such as 100M, 1.50G or 4096 (MiB).
func parseMiB(b []byte) float64 {
	i := 0
	for i < len(b) && (b[i] >= '0' && b[i] <= '9' || b[i] == '.') {
		i++
	}
	v, err := strconv.ParseFloat(string(b[:i]), 64)
	if err != nil || math.IsInf(v, 0) {
		return 0
	}
	if i < len(b) {
		switch b[i] {
		case 'K', 'k':
			v /= 1 << 10
		case 'G', 'g':
			v *= 1 << 10
		case 'T', 't':
			v *= 1 << 20
		case 'P', 'p':
			v *= 1 << 30
		}
	}
	return v
}
