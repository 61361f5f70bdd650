package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/cluster"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/slurmtest"
)

// damages are what may become of a file.
var damages = []struct {
	name string
	do   func(path string, text []byte) error
}{
	{"cut", func(path string, text []byte) error { return os.Truncate(path, int64(len(text)/2)) }},
	{"zeroed", func(path string, text []byte) error { return rewrite(path, make([]byte, len(text))) }},
	{"noise", func(path string, text []byte) error {
		rnd := rand.New(rand.NewPCG(1, uint64(len(text))))
		for i := range text {
			text[i] = byte(rnd.Uint32())
		}
		return rewrite(path, text)
	}},
	{"unreadable", func(path string, _ []byte) error { return os.Chmod(path, 0) }},
	{"a folder", func(path string, _ []byte) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) }},
}

// rewrite changes a file in place: whoever has it open sees it.
func rewrite(path string, text []byte) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

// damaged is a world whose files are damaged.
type damaged struct{ *world }

// ours are the files that daemon and hooks keep, by the daemon that reads them.
func (d *damaged) ours() map[string][]string {
	out := map[string][]string{}
	for daemon, dirs := range map[string][]string{
		"slurmbridge": {d.Path("run")}, d.Agent(0): {d.Path("node"), d.Path("spool-agent")},
	} {
		for _, dir := range dirs {
			_ = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
				if err == nil && e.Type().IsRegular() && !strings.HasPrefix(e.Name(), "slurm") || err == nil &&
					strings.HasPrefix(e.Name(), "slurmbridge.db") {
					out[daemon] = append(out[daemon], path)
				}
				return nil
			})
		}
		slices.Sort(out[daemon])
	}
	return out
}

// runs submits a job and waits until it has run.
func (d *damaged) runs(what string) {
	d.t.Helper()
	id := d.submit("exec sleep 1\n", "--gres=gpu:shared", "--comment=app=hoomd", "--time=5", "--output=/dev/null")
	// A lease of 20 s, Slurm's next look, and the job.
	d.t.Log(what)
	d.reach("COMPLETED", id)
}

// up starts a daemon anew, after something that is done while it is down, and waits until it is there, or has ended with
// a line that names the file; it reports whether it is there.
func (d *damaged) up(daemon, path string, meanwhile func()) bool {
	d.t.Helper()
	said := func() []byte { text, _ := os.ReadFile(d.Path("log", daemon+".log")); return text }
	from := len(said())
	d.Kill(daemon)
	meanwhile()
	must.OK(d.t, d.Again(daemon))
	p := d.Daemon(daemon)
	ready := func() bool {
		if daemon == "slurmbridge" {
			return d.ready()
		}
		return bytes.Contains(said()[from:], []byte("msg=ready"))
	}
	d.until(daemon+" is there, or has ended", func() bool { return ready() || !p.Alive() })
	if ready() {
		return true
	}
	lines := strings.Split(strings.TrimSpace(string(said()[from:])), "\n")
	last := lines[len(lines)-1]
	if p.Alive() || !strings.Contains(last, filepath.Base(path)) || len(last) > 1000 {
		d.t.Errorf("%s is not there with %s damaged, and says %q", daemon, path, last)
	}
	return false
}

// Every file of ours is cut, zeroed, filled with noise, made unreadable or a folder, in turn,
// under a running daemon and under a starting one. The daemon starts, or says in one line what is
// wrong with which file; and jobs run, after a lease at most.
func TestDamagedFiles(t *testing.T) {
	slurmtest.OfOneRelease(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("minutes")
	}
	d := &damaged{newWorld(t, cluster.Setup{Lease: 20 * time.Second})}
	d.runs("nothing is damaged")
	// A job that stays, so that there is a job's file, an MPS daemon's and the agent's state.
	stays := d.run("hoomd", "", "hoomd --duration-scale 1000", "--time=60", "--output=/dev/null")
	d.reach("RUNNING", stays)
	d.until("the agent's state", func() bool { return there(d.Path("node", "agent.state")) })
	for daemon, files := range d.ours() {
		if len(files) < 2 {
			t.Errorf("%s has the files %v", daemon, files)
		}
		t.Logf("%s: %v", daemon, files)
		for _, path := range files {
			for _, damage := range damages {
				text, err := os.ReadFile(path)
				if err != nil {
					continue // it has gone meanwhile: files come and go
				}
				info, err := os.Stat(path)
				if err != nil {
					continue
				}
				what := fmt.Sprintf("%s %s", path, damage.name)
				if d.up(daemon, path, func() {
					// A file that was being written may have gone since.
					if err := damage.do(path, slices.Clone(text)); err != nil && !errors.Is(err, os.ErrNotExist) {
						t.Fatalf("%s: %v", what, err)
					}
				}) {
					continue
				}
				// It was right to refuse: what was damaged is put back.
				if !d.up(daemon, path, func() {
					_ = os.RemoveAll(path)
					must.OK(t, errors.Join(os.WriteFile(path, text, info.Mode()),
						os.Chown(path, int(info.Sys().(*syscall.Stat_t).Uid), int(info.Sys().(*syscall.Stat_t).Gid))))
				}) {
					t.Fatalf("%s: it doesn't start with the file put back", what)
				}
			}
		}
		// And while it runs.
		for _, path := range files {
			for _, damage := range damages[:3] {
				if text, err := os.ReadFile(path); err == nil {
					_ = damage.do(path, slices.Clone(text))
				}
			}
		}
		d.cancel(stays)
		d.runs("all files of " + daemon + " are damaged under it")
		// A file that SQLite has mapped and that is cut ends the process that reads it (SIGBUS):
		// systemd starts the bridge again.
		if !d.there(daemon) {
			log, _ := os.ReadFile(d.Path("log", daemon+".log"))
			if daemon != "slurmbridge" || !bytes.Contains(log, []byte("SIGBUS")) {
				t.Errorf("%s has ended", daemon)
			}
			if !d.up(daemon, files[0], func() {}) {
				t.Errorf("%s doesn't start again", daemon)
			}
		}
	}
}

// The disk of database and spools is full before the daemons start, or before they start again: they start, or say in
// one line what is wrong; jobs run, after a lease at most; and once there is space, jobs share again.
func TestJobsRunOnAFullDisk(t *testing.T) {
	slurmtest.OfOneRelease(t)
	t.Parallel()
	if testing.Short() {
		t.Skip("minutes")
	}
	cluster.Require(t, build)
	disk := must.Get(cluster.NewDisk("slurm", 64))(t)
	t.Cleanup(disk.Close)
	d := &damaged{newWorld(t, cluster.Setup{Lease: 20 * time.Second, Disk: disk})}
	d.runs("there is room")
	again := func(what string) {
		t.Helper()
		for _, daemon := range []string{"slurmbridge", d.Agent(0)} {
			// It may refuse, with the database's name; then jobs wait for a lease.
			d.up(daemon, "slurmbridge.db", func() {})
		}
		d.runs(what)
	}
	must.OK(t, disk.Fill())
	d.runs("the disk is full")
	again("the disk was full when the daemons started")
	d.Kill("slurmbridge")
	for _, path := range []string{"slurmbridge.db", "slurmbridge.db-wal", "slurmbridge.db-shm"} {
		if err := os.Remove(filepath.Join(disk.Dir, path)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Fatal(err)
		}
	}
	must.OK(t, errors.Join(disk.Empty(), disk.Fill()))
	again("there is no room for a database")
	must.OK(t, disk.Empty())
	again("there is room again")
	if !d.there("slurmbridge") {
		t.Error("the bridge isn't there although there is room")
	}
}

// there reports whether a daemon runs.
func (d *damaged) there(daemon string) bool { return d.Daemon(daemon).Alive() }
