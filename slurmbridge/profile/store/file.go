package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/slurmbridge/slurmbridge/rlcore"
	"github.com/slurmbridge/slurmbridge/rlcore/table"
)

// ReadProfiles reads profiles from a file: JSON (an array of profiles, with their
// series) or CSV (app,duration_s,gpu_util,mem_util,mem_mib,sm_util,pcie_mbps,
// step_ms: one constant use an application). An error names file, line and column.
func ReadProfiles(path string) ([]*rlcore.Profile, error) {
	f, err := os.Open(filepath.Clean(path))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if strings.HasSuffix(path, ".csv") {
		return ParseCSV(f, path)
	}
	out, err := ParseJSON(f)
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

// ParseCSV reads profiles as table.ReadProfiles does. What gives no memory is no profile:
// the guard would let anything share the GPU with it. An empty gpu_util counts as 100 %,
// an empty sm_util as much as gpu_util.
func ParseCSV(r io.Reader, name string) ([]*rlcore.Profile, error) {
	return table.ReadProfiles(r, name, &table.ProfileRules{
		Columns: []string{"app", "duration_s", "gpu_util", "mem_mib"}, Values: []string{"duration_s", "mem_mib"},
		GPUPercent: 100, CoreShare: 1, Source: "imported",
	})
}
