package agent

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"time"

	"github.com/google/renameio/v2"

	"github.com/slurmbridge/slurmbridge/gpuprof"
)

// stateEvery is the time between two saves of the running jobs' data, which is also saved at exit. A killed agent loses
// at most that much of each series; the records say how much.
const stateEvery = time.Minute

// mostState bounds the file: a job takes 75 KB at most.
const mostState = 64 << 20

type saved struct {
	Start      time.Time
	Tally      *gpuprof.Tally
	Samples    int
	Failed     int
	Neighbours map[run]*gpuprof.Neighbour
	Mixed      gpuprof.Figures
	Processes  int
	ProcessMiB float64
	WithoutMPS bool
	FaultBy    []int64 // jobs whose processes broke the job's MPS server, if all are known
	// The control group's use up to HostAt; zero = there is no group.
	HostAt  time.Time
	HostCPU float64 // s
	HostMiB float64 // at most
}

func (a *Agent) statePath() string { return filepath.Join(string(a.Dir), "agent.state") }

func (a *Agent) save() error {
	all := map[run]saved{}
	for r, t := range a.jobs {
		all[r] = t.saved
	}
	var buf bytes.Buffer
	err := gob.NewEncoder(&buf).Encode(all)
	if err == nil {
		err = renameio.WriteFile(a.statePath(), buf.Bytes(), 0o600, renameio.WithStaticPermissions(0o600),
			renameio.WithTempDir(filepath.Dir(a.statePath())))
	}
	if err != nil {
		return fmt.Errorf("write down the agent's state: %w", err)
	}
	return nil
}

// load reads the previous agent's state, without entries that can't be true; nil without a file.
func (a *Agent) load() (map[run]saved, error) {
	f, err := os.Open(a.statePath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var all map[run]saved
	if err == nil {
		defer f.Close()
		err = gob.NewDecoder(io.LimitReader(f, mostState)).Decode(&all)
	}
	if err != nil {
		return nil, fmt.Errorf("read the agent's state: %w", err)
	}
	maps.DeleteFunc(all, func(_ run, s saved) bool { return !s.sane() })
	return all, nil
}

func (s *saved) sane() bool {
	return s.Tally != nil && s.Tally.Sane() && s.Samples >= 0 && s.Failed >= 0 &&
		len(s.Neighbours) <= mostNeighbours && len(s.FaultBy) <= mostNeighbours
}
