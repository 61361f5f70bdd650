package prolog

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// DefaultRunDir is where hooks and agent meet.
const DefaultRunDir = "/run/slurmbridge"

// Dir is the folder where hooks and agent meet:
//
//	jobs.lock           held by the hook that changes files of jobs
//	jobs/ID.json        a job that runs
//	ended/ID-RESTART.json  one that has ended, until the agent has closed its record
//	tasks/ID.json       what task prologs, which run as the job's user, need to know of a job that may share its GPU
//	mps/gpuN/           GPU N: lock, its MPS daemon's pipe/ and log/, and
//	                    server.json, what was last seen of its server
//	gpus.json           the node's GPUs, written by the agent
type Dir string

func (d Dir) path(parts ...string) string {
	return filepath.Join(append([]string{string(d)}, parts...)...)
}

// Jobs is the folder of the jobs that run.
func (d Dir) Jobs() string { return d.path("jobs") }

// Ended is the folder of the jobs that have ended.
func (d Dir) Ended() string { return d.path(endedFolder) }

const endedFolder = "ended"

func (d Dir) running(id int64) string { return d.path("jobs", strconv.FormatInt(id, 10)+".json") }

// task is the path of a job's handout.
func (d Dir) task(id int64) string { return d.path("tasks", strconv.FormatInt(id, 10)+".json") }

// ended is the path of an ended run's file. It names the run: when a requeued job's second run ends, the first may not
// have been recorded yet.
func (d Dir) ended(j *JobFile) string {
	return d.path(endedFolder, fmt.Sprintf("%d-%d.json", j.JobID, j.Restart))
}

// Make makes the folders. Only root may write there: users must not forge a job.
func (d Dir) Make() error {
	for _, sub := range []string{"", "jobs", endedFolder, "tasks", "mps"} {
		if err := os.MkdirAll(d.path(sub), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// Begin writes a job's file. An existing file belongs to an earlier run that ended without an epilog, which is closed
// now, or to this run if its prolog was killed and called again: then the first call's start counts.
func (d Dir) Begin(j *JobFile) error {
	err := d.Make()
	release := func() {}
	if err == nil {
		release, err = d.lockJobs()
	}
	if err != nil {
		return fmt.Errorf("job %d: %w", j.JobID, err)
	}
	defer release()
	old, err := ReadJob(d.running(j.JobID))
	switch {
	case err != nil: // there is none, or none that helps
	case old.Restart == j.Restart:
		j.Start = old.Start
		j.MPS = old.MPS
		j.MPSFault = old.MPSFault
		j.MPSFaultBy = old.MPSFaultBy
	default:
		if err := errors.Join(d.move(old, j.Start), ignoreMissing(os.Remove(d.task(j.JobID)))); err != nil {
			return err
		}
	}
	return write(d.running(j.JobID), j)
}

// lockJobs keeps other hooks from changing job files. It is held only while a few files are written.
func (d Dir) lockJobs() (release func(), err error) {
	return lock(context.Background(), d.path("jobs.lock"))
}

func write(path string, j *JobFile) error {
	return putJSON(path, j, 0o600) // comments may be private: root only
}

func putJSON(path string, v any, mode os.FileMode) error {
	body, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return put(path, body, mode)
}

// put writes a file, whole or not at all. The temporary file is in the same folder, not in /tmp, which users can fill.
func put(path string, body []byte, mode os.FileMode) error {
	return renameio.WriteFile(path, body, mode, renameio.WithStaticPermissions(mode),
		renameio.WithTempDir(filepath.Dir(path)))
}

// End moves a job's file to the ended ones and notes the time. A job without a file (its prolog failed, or it had no
// GPU) is no error.
func (d Dir) End(id int64, now time.Time) (*JobFile, error) {
	release, err := d.lockJobs()
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("job %d: %w", id, err)
	}
	defer release()
	untold := ignoreMissing(os.Remove(d.task(id)))
	j, err := ReadJob(d.running(id))
	if errors.Is(err, os.ErrNotExist) {
		return nil, untold
	}
	if err != nil {
		// An unreadable file is useless.
		return nil, errors.Join(err, os.Remove(d.running(id)), untold)
	}
	if err := d.move(j, now); err != nil {
		// The job is over even if that can't be recorded, so its file must go.
		return j, fmt.Errorf("close job file: %w", errors.Join(err, os.Remove(d.running(id)), untold))
	}
	return j, untold
}

// move moves a job's file to the ended ones. The job's end becomes the file's time, which takes no space on a full
// disk. The file is always in exactly one folder: otherwise the agent, which takes it from the ended ones, would see
// the job begin again.
func (d Dir) move(j *JobFile, end time.Time) error {
	j.End = end
	return errors.Join(os.Chtimes(d.running(j.JobID), end, end), os.Rename(d.running(j.JobID), d.ended(j)))
}

// change calls do for each of jobs that still runs, and rewrites the job's file if do returns true.
func (d Dir) change(jobs []*JobFile, do func(*JobFile) bool) error {
	release, err := d.lockJobs()
	if err != nil {
		return err
	}
	defer release()
	var errs []error
	for _, was := range jobs {
		j, err := ReadJob(d.running(was.JobID))
		if err == nil && j.Restart == was.Restart && do(j) {
			errs = append(errs, write(d.running(j.JobID), j))
		}
	}
	return errors.Join(errs...)
}

// tell writes a job's handout unless that run has ended: a prolog that outlasted its deadline may call it late.
func (d Dir) tell(j *JobFile, v any) error {
	release, err := d.lockJobs()
	if err != nil {
		return err
	}
	defer release()
	now, err := ReadJob(d.running(j.JobID))
	if errors.Is(err, os.ErrNotExist) || err == nil && now.Restart != j.Restart {
		return nil
	}
	return putJSON(d.task(j.JobID), v, 0o644)
}

// ReadJob reads a job's file. The time of an ended job's file is the job's end.
func ReadJob(path string) (*JobFile, error) {
	j := new(JobFile)
	if err := readJSON(path, j); err != nil {
		return nil, err
	}
	if j.JobID <= 0 {
		return nil, fmt.Errorf("%s names no job", path)
	}
	if filepath.Base(filepath.Dir(path)) != endedFolder {
		return j, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	j.End = info.ModTime()
	return j, nil
}

// readJSON reads a small file that only root or this process's user can have written. It never blocks, even if a user
// put a pipe there.
func readJSON(path string, into any) error {
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, 0)
	if errors.Is(err, syscall.ELOOP) {
		return fmt.Errorf("%s is no file of the hooks but a link", path)
	}
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() || info.Size() > 64<<10 {
		return fmt.Errorf("%s is no file of the hooks", path)
	}
	owner := info.Sys().(*syscall.Stat_t)
	if owner.Uid != 0 && int(owner.Uid) != os.Geteuid() || info.Mode()&0o022 != 0 {
		return fmt.Errorf("%s is forged: other users than root can write it", path)
	}
	body, err := io.ReadAll(io.LimitReader(f, 64<<10))
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, into); err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return nil
}

// List reads the jobs of a folder, sorted by number. Its error names the files that it couldn't read and left out.
func List(folder string) ([]*JobFile, error) {
	entries, err := os.ReadDir(folder)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var out []*JobFile
	var errs []error
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".json") || strings.HasPrefix(e.Name(), ".") {
			continue
		}
		j, err := ReadJob(filepath.Join(folder, e.Name()))
		switch {
		case errors.Is(err, os.ErrNotExist): // ended in between
		case err != nil:
			errs = append(errs, err)
		default:
			out = append(out, j)
		}
	}
	slices.SortFunc(out, func(a, b *JobFile) int { return int(a.JobID - b.JobID) })
	return out, errors.Join(errs...)
}

// Forget removes an ended job's file, once its record is closed.
func (d Dir) Forget(j *JobFile) error {
	return ignoreMissing(os.Remove(d.ended(j)))
}

// gpu is the folder of one GPU, or a file in it.
func (d Dir) gpu(gpu int, file ...string) string {
	return d.path(append([]string{"mps", "gpu" + strconv.Itoa(gpu)}, file...)...)
}

// Files of a GPU's folder.
const (
	serverFile = "server.json"
	userFile   = "user" // the user whom the GPU's daemon serves, if it serves one at a time
)

// remove removes a file of a GPU's folder.
func (d Dir) remove(gpu int, file string) error { return ignoreMissing(os.Remove(d.gpu(gpu, file))) }

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}

// kept reads a file of the hooks, zero if it can't be read.
func kept[T any](path string) (v T) {
	if readJSON(path, &v) != nil {
		return *new(T)
	}
	return v
}

// Lock takes a GPU's lock.
func (d Dir) Lock(ctx context.Context, gpu int) (release func(), err error) {
	if err := os.MkdirAll(d.gpu(gpu), 0o755); err != nil {
		return nil, err
	}
	return lock(ctx, d.gpu(gpu, "lock"))
}

// lock takes the lock of a file, which it creates if needed, until release is called or the process ends. Only root can
// open the file, since opening a file is enough to lock it for any time.
func lock(ctx context.Context, path string) (release func(), err error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_RDWR, 0o600)
	if errors.Is(err, syscall.EISDIR) && os.Remove(path) == nil { // it blocks the file's name
		f, err = os.OpenFile(filepath.Clean(path), os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err != nil {
		return nil, err
	}
	for {
		if err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, fmt.Errorf("lock %s: %w", path, err)
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, fmt.Errorf("another hook holds its lock: %w", ctx.Err())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// onlyFor restricts a folder to root and one user by an access control list. The folder stays root's, because root's
// daemons write there and an owner could redirect them with links. On file systems without access control lists the
// folder stays open to all.
func onlyFor(dir string, uid uint32) error {
	const (
		everything, look   = 7, 5 // rwx, r-x
		owner, named       = 0x01, 0x02
		group, mask, other = 0x04, 0x10, 0x20
		nobody             = 0xffffffff
	)
	// linux/posix_acl_xattr.h: a version, then tag, permissions and id of each entry, in order.
	list := binary.LittleEndian.AppendUint32(nil, 2)
	for _, e := range []struct {
		tag, perm uint16
		id        uint32
	}{{owner, everything, nobody}, {named, look, uid}, {group, 0, nobody}, {mask, look, nobody}, {other, 0, nobody}} {
		list = binary.LittleEndian.AppendUint16(list, e.tag)
		list = binary.LittleEndian.AppendUint16(list, e.perm)
		list = binary.LittleEndian.AppendUint32(list, e.id)
	}
	err := unix.Setxattr(dir, "system.posix_acl_access", list, 0)
	if errors.Is(err, unix.ENOTSUP) || errors.Is(err, unix.ENOSYS) {
		return os.Chmod(dir, 0o755) //nolint:gosec // as said
	}
	if err != nil {
		return &os.PathError{Op: "set access of", Path: dir, Err: err}
	}
	return nil
}

// oneUser reports whether the GPU's daemon serves one user at a time.
func (d Dir) oneUser(gpu int) bool {
	_, err := os.Stat(d.gpu(gpu, userFile))
	return err == nil
}

// served returns the user of a GPU's daemon that serves one user, −1 if there is none.
func (d Dir) served(gpu int) int64 {
	var uid *uint32
	if readJSON(d.gpu(gpu, userFile), &uid) != nil || uid == nil {
		return -1
	}
	return int64(*uid)
}
