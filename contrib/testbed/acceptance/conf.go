package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/built"
)

// confs are Slurm's files, the same on all machines of a cluster.
var confs = []string{"/etc/slurm/slurm.conf", "/etc/slurm/gres.conf"}

// obey follows doctor's advice, as an admin would: lines into slurm.conf and gres.conf,
// replacing the old ones, and the job_submit script next to them. It returns the
// checks that it did something for.
func (r *rig) obey() []string {
	out, _ := r.try(r.head, "slurmbridge doctor --json")
	var said struct {
		Findings []struct {
			Check string `json:"check"`
			Fix   []struct {
				File  string   `json:"file"`
				Lines []string `json:"lines"`
			} `json:"fix"`
		} `json:"findings"`
	}
	check(because("doctor --json: "+tail(out), json.Unmarshal([]byte(out), &said)))
	var done []string
	for _, f := range said.Findings {
		did := false
		for _, fix := range f.Fix {
			for _, line := range fix.Lines {
				switch {
				case slices.Contains(confs, fix.File):
					r.head.write(fix.File, merge(r.head.read(fix.File), line), 0o644)
					did = true
				case fix.File == "" && strings.HasPrefix(line, "install "):
					r.sh(r.head, line)
					did = true
				}
			}
			if fix.File == "/etc/slurmbridge/slurmbridge.yaml" && (f.Check == "gate-seen" || f.Check == "used-gpus") {
				key, _, _ := strings.Cut(fix.Lines[0], ":")
				r.sh(r.head, "sed -i 's/^"+key+":.*/"+fix.Lines[0]+"/' "+fix.File)
			}
		}
		if did {
			done = append(done, f.Check)
		}
	}
	r.sameConf()
	return done
}

// sameConf copies Slurm's files from the controller to the node.
func (r *rig) sameConf() {
	for _, f := range confs {
		r.node.write(f, r.head.read(f), 0o644)
	}
}

// merge puts a line into a configuration of Slurm's. Its NAME=VALUE words replace those of the line with the same
// setting or, after NodeName=, PartitionName= and Name=, of the same name; "…" and the value TYPE keep what is there.
func merge(text, line string) string {
	fields := strings.Fields(line)
	if len(fields) == 0 || strings.HasPrefix(line, "#") {
		return text
	}
	name := func(field string) string {
		key, _, _ := strings.Cut(field, "=")
		return strings.ToLower(key)
	}
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := range lines {
		have := strings.Fields(lines[i])
		if len(have) == 0 || name(have[0]) != name(fields[0]) ||
			slices.Contains([]string{"nodename", "partitionname", "name"}, name(fields[0])) && have[0] != fields[0] {
			continue
		}
		for _, f := range fields {
			at := slices.IndexFunc(have, func(h string) bool { return name(h) == name(f) })
			switch _, value, ok := strings.Cut(f, "="); {
			case !ok || value == "TYPE":
			case at < 0:
				have = append(have, f)
			default:
				have[at] = f
			}
		}
		lines[i] = strings.Join(have, " ")
		return strings.Join(lines, "\n") + "\n"
	}
	return text + line + "\n"
}

// The node has no GPU: what follows stands in for the driver, and is all that this test
// adds to what the pages say. Where there is a card, none of it is needed.
const (
	simDir   = "/opt/gpusim"
	simState = "/var/lib/gpusim/state"
)

// dropIn sets the path of the simulated driver's library for the agent, and lets it write the
// simulation's state as it would write the card's device.
const dropIn = `[Service]
Environment=LD_LIBRARY_PATH=` + simDir + ` GPUSIM_STATE=` + simState + `
ReadWritePaths=/var/lib/gpusim
`

// driver makes, at boot as a driver does, the device node (in the container's own /dev,
// and behind it /dev/null's device) and the card. Eight GPU seconds pass in a second: a minute's job takes
// eight seconds.
const driver = `[Unit]
Description=simulated GPU
Before=slurmd.service gpuprof.service
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=sh -ec 'rm -f /dev/nvidia0 ` + simState + `; mknod -m 666 /dev/nvidia0 c 1 3; mkdir -p /var/lib/gpusim; \
	` + simDir + `/gpusim init --state ` + simState + ` --scale 8 --uuid-seed gpu1; chmod 666 ` + simState + `'
[Install]
WantedBy=multi-user.target
`

// simulate puts the simulated driver onto the node: NVML, MPS, the applications.
func (r *rig) simulate() {
	check(built.Copy(programs, filepath.Join(r.node.dir, simDir), "gpusim", built.Library))
	for _, name := range []string{"nvidia-cuda-mps-control", "nvidia-cuda-mps-server"} {
		r.node.write("/usr/bin/"+name, "#!/bin/sh\nexport GPUSIM_STATE="+simState+"\nexec "+simDir+"/"+name+" \"$@\"\n",
			0o755)
	}
	r.node.write("/etc/systemd/system/gpuprof.service.d/simulated.conf", dropIn, 0o644)
	r.node.write("/etc/systemd/system/simulated-gpu.service", driver, 0o644)
	check(os.Symlink("../simulated-gpu.service", filepath.Join(r.node.dir, wants, "simulated-gpu.service")))
}

// block is one fenced block of commands of a page: its info string is
// "sh WHERE NAME", e.g. "sh controller install".
type block struct {
	where, name string
	text        string // the commands, a line each
	page        string
	line        int // of the page, where the commands begin
}

// manual is the commands of README.md and of contrib/doc's pages, and which of them were run, by "WHERE NAME".
type manual struct {
	blocks []block
	used   map[string]bool
}

// places are where a block may be run.
var places = []string{"controller", "nodes", "user"}

// readPages reads README.md and the pages of contrib/doc, from the folder of the sources.
func readPages(sources string) (*manual, error) {
	pages, err := filepath.Glob(filepath.Join(sources, "contrib/doc/*.md"))
	if err != nil {
		return nil, err
	}
	m := &manual{used: map[string]bool{}}
	for _, page := range append([]string{filepath.Join(sources, "README.md")}, pages...) {
		text, err := os.ReadFile(page)
		if err == nil {
			err = m.read(filepath.Base(page), string(text))
		}
		if err != nil {
			return nil, because(page, err)
		}
	}
	return m, nil
}

// read finds a page's blocks. A block may stand on several pages if its commands are the same there.
func (m *manual) read(page, text string) error {
	parts := strings.Split("\n"+text, "\n```") // every second one is a block
	if len(parts)%2 == 0 {
		return errors.New("the last block has no end")
	}
	line := 0
	for i, part := range parts {
		if i%2 == 1 {
			head, commands, _ := strings.Cut(part+"\n", "\n")
			f := strings.Fields(head)
			var other *block
			if len(f) == 3 {
				other = m.find(f[1], f[2])
			}
			switch {
			case len(f) != 3 || f[0] != "sh" || !slices.Contains(places, f[1]):
				return fmt.Errorf("line %d: %q: a block begins with ```sh WHERE NAME, where WHERE is one of %v", line, head, places)
			case strings.TrimSpace(commands) == "":
				return fmt.Errorf("line %d: no commands in %s", line, head)
			case other != nil && (other.page == page || other.text != commands):
				return fmt.Errorf("line %d: %s has a block %s already", line, other.page, head)
			case other == nil:
				m.blocks = append(m.blocks, block{f[1], f[2], commands, page, line + 1})
			}
		} else if i > 0 && !strings.HasPrefix(part+"\n", "\n") {
			return fmt.Errorf("line %d: a block begins within another", line)
		}
		line += strings.Count(part, "\n") + 1
	}
	return nil
}

func (m *manual) find(where, name string) *block {
	for i := range m.blocks {
		if b := &m.blocks[i]; b.where == where && b.name == name {
			return b
		}
	}
	return nil
}

// take is the block of this name, which is now being run; without one the step ends.
func (m *manual) take(where, name string) *block {
	b := m.find(where, name)
	if b == nil {
		fail("no page has a block %q", where+" "+name)
	}
	m.used[where+" "+name] = true
	return b
}

// left lists the blocks that were not run.
func (m *manual) left() []string {
	var out []string
	for i := range m.blocks {
		if key := m.blocks[i].where + " " + m.blocks[i].name; !m.used[key] {
			out = append(out, fmt.Sprintf("%s (%s line %d)", key, m.blocks[i].page, m.blocks[i].line))
		}
	}
	return out
}
