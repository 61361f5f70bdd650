package store

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
)

// columns of a profile file in CSV. Percentages are 0 to 100 of the whole card;
// an empty field is unknown. What gives no memory is no profile: the guard would let
// anything run beside it.
var columns = []string{"app", "duration_s", "gpu_util", "mem_util", "mem_mib", "sm_util", "pcie_mbps", "step_ms"}

// ReadProfiles reads profiles from a file: JSON (an array of profiles, with their
// series) or CSV (app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,
// step_ms: one constant use an application). An error names file, line and column.
func ReadProfiles(path string) ([]*rlcore.Profile, error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var out []*rlcore.Profile
	if strings.HasSuffix(path, ".csv") {
		out, err = ParseCSV(f)
	} else {
		out, err = ParseJSON(f)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return out, nil
}

// ParseJSON reads profiles from JSON.
func ParseJSON(r io.Reader) ([]*rlcore.Profile, error) {
	dec := json.NewDecoder(io.LimitReader(r, 256<<20))
	dec.DisallowUnknownFields()
	var out []*rlcore.Profile
	if err := dec.Decode(&out); err != nil {
		return nil, fmt.Errorf("not a list of profiles: %w", err)
	}
	if len(out) == 0 {
		return nil, errors.New("no profile in it")
	}
	for i, p := range out {
		if p == nil || p.App == "" {
			return nil, fmt.Errorf("profile %d has no app", i+1)
		}
		if err := p.Validate(); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// ParseCSV reads profiles from CSV with a header line.
func ParseCSV(r io.Reader) ([]*rlcore.Profile, error) {
	cr := csv.NewReader(r)
	cr.FieldsPerRecord = -1
	head, err := cr.Read()
	if err != nil {
		return nil, fmt.Errorf("line 1: a header with the columns %s is missing", strings.Join(columns, ","))
	}
	at := map[string]int{}
	for i, name := range head {
		at[strings.TrimSpace(name)] = i
	}
	for _, need := range []string{"app", "duration_s", "gpu_util", "mem_mib"} {
		if _, ok := at[need]; !ok {
			return nil, fmt.Errorf("line 1: column %s is missing", need)
		}
	}
	var out []*rlcore.Profile
	seen := map[string]bool{}
	for {
		rec, err := cr.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		line, _ := cr.FieldPos(0)
		p, err := profileOf(rec, at)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		if seen[p.App] {
			return nil, fmt.Errorf("line %d: column app: %q stands there twice", line, p.App)
		}
		seen[p.App] = true
		out = append(out, p)
	}
	if len(out) == 0 {
		return nil, errors.New("no profile in it")
	}
	return out, nil
}

func profileOf(rec []string, at map[string]int) (*rlcore.Profile, error) {
	text := func(col string) string {
		if i, ok := at[col]; ok && i < len(rec) {
			return strings.TrimSpace(rec[i])
		}
		return ""
	}
	var first error
	number := func(col string, lo, hi, unknown float64) float64 {
		s := text(col)
		if s == "" {
			return unknown
		}
		v, err := strconv.ParseFloat(s, 64)
		if err != nil || math.IsNaN(v) || v < lo || v > hi {
			if first == nil {
				first = fmt.Errorf("column %s: %.40q is no number from %g to %g", col, s, lo, hi)
			}
			return unknown
		}
		return v
	}
	if text("app") == "" {
		return nil, errors.New("column app: it is empty")
	}
	if text("duration_s") == "" {
		return nil, errors.New("column duration_s: it is empty")
	}
	if text("mem_mib") == "" {
		return nil, errors.New("column mem_mib: it is empty; a profile without it would let anything run beside it")
	}
	p := &rlcore.Profile{App: text("app"), Source: "imported"}
	p.DurationS = number("duration_s", 0.001, 1e8, 0)
	p.PeriodS = p.DurationS
	p.StepS = number("step_ms", 0, 1e9, 0) / 1000
	u := rlcore.Use{
		GPU:      number("gpu_util", 0, 100, 100) / 100,
		MemMiB:   number("mem_mib", 0, 1e7, 0),
		PCIeMBps: number("pcie_mbps", 0, 1e6, 0),
	}
	u.Core = number("sm_util", 0, 100, 100*u.GPU) / 100
	number("mem_util", 0, 100, 0) // checked, and not used: it says how busy the memory is, not how full
	p.Series = []rlcore.Use{u}
	if first != nil {
		return nil, first
	}
	return p, p.Validate()
}
