package recordhttp

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/gpuprof"
	"github.com/slurmbridge/slurmbridge/gpuprof/munge"
	"github.com/slurmbridge/slurmbridge/rlcore"
)

// munged starts a munged of the test's own.
func munged(t *testing.T) *munge.Munge {
	t.Helper()
	u, err := user.Lookup("munge")
	if err != nil || os.Geteuid() != 0 {
		if os.Getenv("SLURMBRIDGE_REQUIRE_SLURM") == "1" {
			t.Fatal("needs root and munge")
		}
		t.Skip("needs root and munge")
	}
	uid, err := strconv.Atoi(u.Uid)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "mg")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	key := filepath.Join(dir, "key")
	if err := os.WriteFile(key, []byte(strings.Repeat("k", 128)), 0o400); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{dir, key} {
		if err := os.Chown(p, uid, uid); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	m := &munge.Munge{Socket: filepath.Join(dir, "s")}
	path := "/usr/sbin/munged"
	cmd := exec.Command(path, "--foreground", "--force", "--key-file="+key, "--socket="+m.Socket,
		"--pid-file="+dir+"/pid", "--log-file="+dir+"/log", "--seed-file="+dir+"/seed")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	for range 200 {
		if _, err := m.Encode(context.Background(), "x"); err == nil {
			return m
		}
		time.Sleep(25 * time.Millisecond)
	}
	t.Fatal("munged does not answer")
	return nil
}

func record(job int64) *gpuprof.Record {
	return &gpuprof.Record{
		JobID: job, Node: "n1", User: "ann", Start: time.Unix(1, 0), End: time.Unix(9, 0), PeriodS: 1,
		Series: []rlcore.Use{{GPU: 0.5, MemMiB: 100}},
	}
}

func TestRecordsNeedACredential(t *testing.T) {
	m := munged(t)
	kept := map[int64]bool{}
	h := &Handler{
		Munge: m, AllowUID: func(uid uint32) bool { return uid == 0 },
		Keep: func(_ context.Context, r *gpuprof.Record) (bool, error) {
			isNew := !kept[r.JobID]
			kept[r.JobID] = true
			return isNew, nil
		},
	}
	srv := httptest.NewServer(h)
	defer srv.Close()
	ctx := context.Background()
	s := &Sender{URL: srv.URL, Munge: m}
	for range 2 { // the second is a duplicate, and no error
		if err := s.Send(ctx, record(7)); err != nil {
			t.Fatal(err)
		}
	}
	if !kept[7] {
		t.Fatal("the record was not kept")
	}
	if err := s.Send(ctx, &gpuprof.Record{JobID: -1, Node: "n"}); !errors.Is(err, ErrRefused) {
		t.Errorf("a record of nonsense: %v", err)
	}
	post := func(cred, body string) int {
		req, err := http.NewRequest(http.MethodPost, srv.URL+Path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", cred)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	good, err := m.Encode(ctx, bind([]byte("x")))
	if err != nil {
		t.Fatal(err)
	}
	// Somebody who is neither root nor SlurmUser makes a credential of his own.
	forged := exec.Command("munge", "--socket="+m.Socket)
	forged.Stdin = strings.NewReader(bind([]byte("x")))
	forged.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
	cred, err := forged.Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, cred, body string
		want             int
	}{
		{"no credential", "", "x", http.StatusUnauthorized},
		{"a credential of nonsense", "Munge MUNGE:AAAA:", "x", http.StatusUnauthorized},
		{"options in place of one", "Munge --help", "x", http.StatusUnauthorized},
		{"for another body", "Munge " + good, "y", http.StatusUnauthorized},
		{"used before", "Munge " + good, "x", http.StatusUnauthorized},
		{"of another user", "Munge " + strings.TrimSpace(string(cred)), "x", http.StatusForbidden},
	} {
		if got := post(c.cred, c.body); got != c.want {
			t.Errorf("%s: status %d, want %d", c.name, got, c.want)
		}
	}
	big, err := m.Encode(ctx, "x")
	if err != nil {
		t.Fatal(err)
	}
	if got := post("Munge "+big, strings.Repeat("x", maxBody+1)); got != http.StatusRequestEntityTooLarge {
		t.Errorf("a huge body: status %d", got)
	}
}
