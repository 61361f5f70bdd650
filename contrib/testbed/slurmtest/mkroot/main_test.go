package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
)

func TestMountedIn(t *testing.T) {
	const table = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:5 / /srv/trixie/proc rw - proc proc rw
31 22 0:6 / /srv/with\040blank rw - tmpfs tmpfs rw
`
	for dir, want := range map[string]string{
		"/srv/trixie": "/srv/trixie/proc", "/srv/trixie/proc": "/srv/trixie/proc", "/srv/tri": "", "/srv/trixie/proc/1": "",
		"/srv/with blank": "/srv/with blank", "/other": "",
	} {
		if got := mountedIn(table, dir); got != want {
			t.Errorf("in %s: %q, want %q", dir, got, want)
		}
	}
}

func TestOSRelease(t *testing.T) {
	text := "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nVERSION_CODENAME=bookworm\n"
	if got := osRelease(text, "VERSION_CODENAME"); got != "bookworm" {
		t.Errorf("codename %q", got)
	}
	if got := osRelease(text, "PRETTY_NAME"); got != "Debian GNU/Linux 12 (bookworm)" {
		t.Errorf("name %q", got)
	}
	if got := osRelease(text, "ID"); got != "" {
		t.Errorf("id %q", got)
	}
}

func TestScript(t *testing.T) {
	scripts := t.TempDir()
	must.OK(t, os.WriteFile(filepath.Join(scripts, "trixie"), nil, 0o644))
	if got := script(scripts, "trixie"); got != nil {
		t.Errorf("a known suite: %q", got)
	}
	if got := script(scripts, "forky"); len(got) != 1 || got[0] != "sid" {
		t.Errorf("a newer one: %q", got)
	}
}

// TestCompleteRootIsLeftAlone: a second call changes nothing and needs nothing.
func TestCompleteRootIsLeftAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "root")
	must.OK(t, os.Mkdir(dir, 0o755))
	mark := filepath.Join(dir, done)
	must.OK(t, os.WriteFile(mark, []byte("trixie "+packages+"\n"), 0o644))
	t.Setenv("PATH", "")
	if err := mkroot(t.Context(), "trixie", packages, dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err != nil {
		t.Error(err)
	}
	if err := mkroot(t.Context(), "nosuite", packages, dir); err == nil {
		t.Error("another suite's root passes for it")
	}
	if _, err := os.Stat(mark); err != nil {
		t.Errorf("a call that failed has removed the root: %v", err)
	}
}
