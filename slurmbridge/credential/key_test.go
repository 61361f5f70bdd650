package credential_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/slurmbridge/slurmbridge/contrib/testbed/keytest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/mungetest"
	"github.com/slurmbridge/slurmbridge/contrib/testbed/must"
	"github.com/slurmbridge/slurmbridge/slurmbridge/credential"
)

// since returns a key that has been in use for a day, as a clock shows that is off by so much.
func since(file string, off time.Duration) *credential.Key {
	k := credential.NewKey(file)
	k.Since = time.Now().Add(-24 * time.Hour)
	k.Now = func() time.Time { return time.Now().Add(off) }
	return k
}

func encode(t *testing.T, m credential.Method, payload string) string {
	t.Helper()
	cred := must.Get(m.Encode(t.Context(), payload))(t)
	return cred
}

// Whatever proves it, a credential is believed for what it says, once, where sender and receiver have one secret and
// clocks that differ by less than five minutes; how far they differ is reported.
func TestCredentials(t *testing.T) {
	key, other := keytest.Random(t), keytest.Random(t)
	for name, method := range map[string]func(t *testing.T, another bool, clock time.Duration) credential.Method{
		"key": func(t *testing.T, another bool, clock time.Duration) credential.Method {
			t.Helper()
			return since(keytest.File(t, map[bool][]byte{false: key, true: other}[another]), clock)
		},
		"munge": func(t *testing.T, another bool, clock time.Duration) credential.Method {
			t.Helper()
			return mungetest.Start(t, map[bool]string{false: mungetest.Key, true: "other"}[another], clock)
		},
		"token": func(t *testing.T, another bool, clock time.Duration) credential.Method {
			t.Helper()
			m := (&kiosk{another: another, claims: func(c map[string]any) {
				at := time.Now().Add(clock)
				c["uid"], c["iat"], c["exp"] = os.Geteuid(), at.Unix(), at.Add(10*time.Minute).Unix()
			}}).start(t)
			m.Since = m.Since.Add(-24 * time.Hour)
			return m
		},
	} {
		t.Run(name, func(t *testing.T) {
			here := method(t, false, 0)
			decode := func(cred string) (*credential.Credential, error) { return here.Decode(t.Context(), cred) }
			good := encode(t, here, "some\n\npayload: x")
			c := must.Get(decode(good))(t)
			if int(c.UID) != os.Geteuid() || c.Payload != "some\n\npayload: x" || c.Behind().Abs() > 2*time.Second {
				t.Errorf("%+v", c)
			}
			if c, err := decode(good); !errors.Is(err, credential.ErrReplayed) || c != nil {
				t.Errorf("the second time: %+v, %v", c, err)
			}
			must.Get(decode(encode(t, here, "some\n\npayload: x")))(t) // another one of the same second
			must.Is(t, must.Err(decode(encode(t, method(t, true, 0), "x"))), credential.ErrInvalid, "made with another key")
			for off, want := range map[time.Duration]string{
				-10 * time.Minute: "s behind this host's", 10 * time.Minute: "s ahead of this host's", -time.Minute: "",
			} {
				c, err := decode(encode(t, method(t, false, off), "x"))
				if want != "" && (!errors.Is(err, credential.ErrExpired) || !strings.HasSuffix(err.Error(), want) ||
					here.Hint(err) == "") || want == "" && err != nil {
					t.Errorf("clock off by %s: %v", off, err)
				}
				if c == nil || (c.Behind()+off).Abs() > 2*time.Second {
					t.Errorf("clock off by %s: %+v", off, c)
				}
			}
			for _, bad := range []string{
				"", "a.b", "a.b.c", "a..c", "MUNGE:", "MUNGE:a b:", "--help", "KEY1:::::", "KEY2" + good[4:], good + "\n", " " + good,
				good + good, strings.ToUpper(good), strings.Repeat("A", 5*credential.MaxPayload),
			} {
				if c, err := decode(bad); !errors.Is(err, credential.ErrInvalid) || c != nil {
					t.Errorf("%.80q: %+v, %v", bad, c, err)
				}
			}
		})
	}
}

// Clocks are set while daemons run. What this process can't remember isn't believed, and all the rest is.
func TestAClockIsSet(t *testing.T) {
	file := keytest.File(t, keytest.Random(t))
	for name, c := range map[string]struct {
		runs, set, age time.Duration // of the process, by so much, of the credential
		want           error
	}{
		"back by more than it has run": {runs: time.Hour, set: -3 * time.Hour},
		"forward, after the start":     {runs: time.Hour, set: 3 * time.Hour},
		"forward, before the start":    {runs: time.Second, set: 3 * time.Hour, age: time.Minute, want: credential.ErrReplayed},
	} {
		here := since(file, c.set)
		here.Since = time.Now().Add(-c.runs)
		_, err := here.Decode(t.Context(), encode(t, since(file, c.set-c.age), "x"))
		must.Equal(t, errors.Is(err, c.want) && (err == nil) == (c.want == nil), true, "%s: %v", name, err)
	}
}

// Of many that show the same credential at once one is believed.
func TestOneOfManyReplays(t *testing.T) {
	here := since(keytest.File(t, keytest.Random(t)), 0)
	cred := encode(t, here, "x")
	var believed atomic.Int32
	var all sync.WaitGroup
	for range 50 {
		all.Go(func() {
			if _, err := here.Decode(t.Context(), cred); err == nil {
				believed.Add(1)
			} else if !errors.Is(err, credential.ErrReplayed) {
				t.Error(err)
			}
		})
	}
	all.Wait()
	must.Equal(t, believed.Load(), 1, "credentials that were believed")
}

// A daemon that has just started doesn't know what was used before.
func TestReplaysOverARestart(t *testing.T) {
	file := keytest.File(t, keytest.Random(t))
	before := encode(t, since(file, -time.Second), "x")
	must.Is(t, must.Err(credential.NewKey(file).Decode(t.Context(), before)), credential.ErrReplayed)
}

// A key is changed in three steps, of which each node may be at another than the controller.
func TestKeyRotation(t *testing.T) {
	old, young := keytest.Random(t), keytest.Random(t)
	steps := [][][]byte{{old}, {old, young}, {young, old}, {young}}
	for i, sender := range steps {
		for j, receiver := range steps {
			cred := encode(t, since(keytest.File(t, sender...), 0), "x")
			_, err := since(keytest.File(t, receiver...), 0).Decode(t.Context(), cred)
			if d := i - j; d >= -1 && d <= 1 && err != nil {
				t.Errorf("sender at step %d, controller at %d: %v", i, j, err)
			}
			if (i == 0 && j == 3 || i == 3 && j == 0) && !errors.Is(err, credential.ErrInvalid) {
				t.Errorf("sender at step %d, controller at %d: %v", i, j, err)
			}
		}
	}
	// Without a restart of either.
	file := keytest.File(t, old)
	here := since(file, 0)
	before := encode(t, here, "x")
	must.OK(t, os.WriteFile(file, []byte(keytest.Line(young)), 0o600))
	must.Is(t, must.Err(here.Decode(t.Context(), before)), credential.ErrInvalid, "made with a key that is gone")
	must.OK(t, must.Err(here.Decode(t.Context(), encode(t, here, "x"))))
}

// A file that others could read or replace is used by nobody, and the error says what to do
// without repeating what is in it.
func TestKeyFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: files of other users")
	}
	key := keytest.Line(keytest.Random(t))
	const slurm, group, alice = 64030, 64031, 1000
	for _, c := range []struct {
		name       string
		text       string
		owner, gid int
		mode       os.FileMode
		uid        uint32 // the reader
		want       string // "" = it is good
	}{
		{"root's", key, 0, 0, 0o600, 0, ""},
		{"root's, for reading", key, 0, 0, 0o400, 0, ""},
		{"SlurmUser's", key, slurm, group, 0o600, slurm, ""},
		{"root's, for SlurmUser's group", key, 0, group, 0o640, slurm, ""},
		{"root's, and SlurmUser reads", key, 0, 0, 0o600, slurm, "chown 64030"},
		{"root's, for another group", key, 0, alice, 0o640, slurm, "group 1000"},
		{"root's, for a group of users", key, 0, alice, 0o640, 0, "group 1000"},
		{"a user's", key, alice, alice, 0o600, 0, "chown 0"},
		{"another user's", key, alice, alice, 0o600, slurm, "chown 64030"},
		{"everybody's", key, 0, 0, 0o644, 0, "make a new one, and chmod 0600"},
		{"everybody's to write", key, 0, 0, 0o602, 0, "chmod 0600"},
		{"a group's to write", key, 0, 0, 0o660, 0, "chmod 0600"},
		{"empty", "", 0, 0, 0o600, 0, "no key"},
		{"comments", "# key\n\n", 0, 0, 0o600, 0, "no key"},
		{"a password", "correct horse battery staple\n", 0, 0, 0o600, 0, "line 1 is no key"},
		{"short", "c2hvcnQ=\n", 0, 0, 0o600, 0, "5 bytes"},
		{"zeros", strings.Repeat("A", 43) + "=\n", 0, 0, 0o600, 0, "isn't random"},
		{"one good, one bad", key + "junk!\n", 0, 0, 0o600, 0, "line 2 is no key"},
		{"many", strings.Repeat(key, 9), 0, 0, 0o600, 0, "more than 8"},
		{"huge", strings.Repeat("#\n", 64<<10), 0, 0, 0o600, 0, "larger"},
	} {
		file := filepath.Join(t.TempDir(), "key")
		must.OK(t, os.WriteFile(file, []byte(c.text), 0o600), os.Chown(file, c.owner, c.gid), os.Chmod(file, c.mode))
		gid := uint32(0)
		if c.uid == slurm {
			gid = group
		}
		keys, err := credential.ReadKeysAs(file, c.uid, gid)
		if (err == nil) != (c.want == "") || err != nil &&
			(!strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), file)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
		if err == nil && (len(keys) != 1 || len(keys[0]) != 32) {
			t.Errorf("%s: %d keys", c.name, len(keys))
		}
		if err != nil && c.text != "" && (strings.Contains(err.Error(), strings.TrimSpace(key)) ||
			strings.Contains(err.Error(), "horse")) {
			t.Errorf("%s: it is repeated: %v", c.name, err)
		}
	}
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	must.OK(t, syscall.Mkfifo(fifo, 0o600))
	open := keytest.File(t, keytest.Random(t))
	must.OK(t, os.Chmod(filepath.Dir(open), 0o777))
	link := filepath.Join(dir, "link")
	must.OK(t, os.Symlink(open, link))
	for file, want := range map[string]string{
		fifo: "is no file", dir: "is no file",
		filepath.Join(dir, "none"): "no such file", open: "could replace", link: "could replace",
	} {
		must.Fail(t, must.Err(credential.ReadKeys(file)), want, file)
		k := credential.NewKey(file)
		_, err := k.Encode(t.Context(), "x")
		_, derr := k.Decode(t.Context(), keytest.Forge(keytest.Random(t), 0, time.Now(), "x"))
		if !errors.Is(err, credential.ErrDown) || !errors.Is(derr, credential.ErrDown) || k.Hint(err) == "" {
			t.Errorf("%s: %v, %v", file, err, derr)
		}
	}
}

// Not one character of a credential can be another, nor can anything be put in.
func FuzzKeyDecode(f *testing.F) {
	key := keytest.Random(f)
	k := credential.NewKey(keytest.File(f, key))
	good := keytest.Forge(key, 0, time.Now(), "slurmbridge POST /v1/records 0123")
	for i := range good {
		f.Add(i, 1, "0")
		f.Add(i, 1, "A")
		f.Add(i, 1, ":")
		f.Add(i, 0, "0")
		f.Add(i, 1, "")
	}
	f.Fuzz(func(t *testing.T, at, n int, with string) {
		at = max(0, at) % len(good)
		bad := good[:at] + with + good[min(len(good), at+max(0, n)%len(good)):]
		if c, err := k.Decode(t.Context(), bad); bad != good && (!errors.Is(err, credential.ErrInvalid) || c != nil) {
			t.Errorf("%q: %+v, %v", bad, c, err)
		}
	})
}

// What is wrong with munged here is not held against the credential.
func TestMungedIsDown(t *testing.T) {
	dir := t.TempDir()
	for name, m := range map[string]*credential.Munge{
		"no socket":  {Socket: filepath.Join(dir, "none")},
		"no program": {Bin: dir},
		"silent":     {Bin: script(t, "exit 0")},
		"timeout":    {Bin: script(t, "exit 7")},
		"killed":     {Bin: script(t, "kill -9 $$")},
		"forged":     {Bin: script(t, "echo 'STATUS: Success (0)'; echo; echo 'UID: root (0)'")},
	} {
		if c, err := m.Decode(t.Context(), "MUNGE:AAAA:"); !errors.Is(err, credential.ErrDown) || c != nil {
			t.Errorf("decode, %s: %+v, %v", name, c, err)
		}
		must.Is(t, must.Err(m.Encode(t.Context(), "x")), credential.ErrDown, "encode, %s", name)
	}
}

// On a busy machine munge's answer may be read long after munge has ended.
func TestALateAnswerCounts(t *testing.T) {
	m := &credential.Munge{Bin: script(t, "(sleep 1.5; echo MUNGE:AAAA:) & exit 0")}
	must.Equal(t, must.Get(m.Encode(t.Context(), "x"))(t), "MUNGE:AAAA:")
}

func script(t *testing.T, text string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, name := range []string{"munge", "unmunge"} {
		must.OK(t, os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text+"\n"), 0o755))
	}
	return dir
}

// Nothing but a credential reaches the command, and none is longer than what is sent.
func TestOnlyCredentialsAreDecoded(t *testing.T) {
	m := &credential.Munge{Bin: "/nonexistent"}
	for _, cred := range []string{"MUNGE:AAAA:\n", "MUNGE:" + strings.Repeat("A", 4*credential.MaxPayload) + ":"} {
		must.Is(t, must.Err(m.Decode(t.Context(), cred)), credential.ErrInvalid, "%.20q", cred)
	}
	long := strings.Repeat("x", credential.MaxPayload+1)
	for _, m := range []credential.Method{credential.NewKey(keytest.File(t, keytest.Random(t))), credential.NewToken()} {
		if _, err := m.Encode(t.Context(), long); !errors.Is(err, credential.ErrDown) || !strings.Contains(err.Error(), "bytes") {
			t.Errorf("%T: a payload that is too long: %v", m, err)
		}
	}
}
