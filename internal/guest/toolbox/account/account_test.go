package account

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const testPasswd = `# comment
root:x:0:0:root:/root:/bin/bash
broken:x:y:0
app:x:1000:1001:App,,,:/srv/app/:/bin/zsh
+nis
77:x:5000:5000::/seven:
relative:x:3:3::home:
max:x:4294967295:0::/:
`

const testGroup = `root:x:0:
app:x:1001:
video:x:44:app,root
bad:x:zz:app
sudo:x:27:other,app
`

func testDatabase(t *testing.T) Database {
	t.Helper()
	root := t.TempDir()
	if err := os.Mkdir(filepath.Join(root, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{"passwd": testPasswd, "group": testGroup} {
		if err := os.WriteFile(filepath.Join(root, "etc", name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return Database{Root: root}
}

func TestLookup(t *testing.T) {
	d := testDatabase(t)
	app := User{Name: "app", UID: 1000, GID: 1001, Groups: []uint32{44, 27}, Home: "/srv/app", Shell: "/bin/zsh"}
	alone := app
	alone.Groups, alone.GID = nil, 44
	for spec, want := range map[string]User{
		"app": app, "1000": app, "app:video": alone, "app:44": alone,
		"root":     {Name: "root", Groups: []uint32{44}, Home: "/root", Shell: "/bin/bash"},
		"4242":     {Name: "4242", UID: 4242, Home: "/"},
		"4242:7":   {Name: "4242", UID: 4242, GID: 7, Home: "/"},
		"77":       {Name: "77", UID: 5000, GID: 5000, Home: "/seven"}, // a name first
		"relative": {Name: "relative", UID: 3, GID: 3, Home: "/"},
	} {
		got, err := d.Lookup(spec)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v %s", spec, err, diff)
		}
	}
	for _, spec := range []string{"", ":", "nobody", "broken", "max", "app:none", "-1", "+1", "4294967295", "app:"} {
		if got, err := d.Lookup(spec); err == nil {
			t.Errorf("%q: %+v, want an error", spec, got)
		}
	}
	if _, err := d.Lookup("nobody"); !errors.Is(err, ErrUnknown) {
		t.Errorf("error %v, want ErrUnknown", err)
	}
	if got, err := (Database{Root: t.TempDir()}).Lookup("root"); err != nil || got.UID != 0 || got.Home != "/root" {
		t.Errorf("root without a database: %+v, %v", got, err)
	}
}

func TestDo(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to act as another user")
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	read := func() error { _, err := os.ReadFile(secret); return err }
	user := User{Name: "u", UID: 61234, GID: 61234}
	for range 20 {
		if err := user.Do(read); !errors.Is(err, os.ErrPermission) {
			t.Fatalf("as user: %v", err)
		}
		if err := read(); err != nil {
			t.Fatalf("afterwards: %v", err)
		}
	}
	group := User{Name: "u", UID: 61234, GID: 61234, Groups: []uint32{61300}}
	os.Chmod(filepath.Dir(secret), 0o755)
	os.Chmod(filepath.Dir(filepath.Dir(secret)), 0o755)
	os.Chown(secret, 0, 61300)
	os.Chmod(secret, 0o640)
	if err := group.Do(read); err != nil {
		t.Errorf("by supplementary group: %v", err)
	}
	if err := user.Do(read); err == nil {
		t.Error("without the group it is readable")
	}
}

func FuzzParse(f *testing.F) {
	f.Add(testPasswd)
	f.Add(testGroup)
	f.Add(strings.Repeat(":", 100))
	f.Fuzz(func(t *testing.T, text string) {
		err := scanLines(strings.NewReader(text), func(fields []string) bool {
			if u, ok := parseUser(fields); ok && (u.Name == "" || !filepath.IsAbs(u.Home) || u.UID == 1<<32-1) {
				t.Errorf("%q gave %+v", fields, u)
			}
			parseGroup(fields)
			return true
		})
		if err != nil {
			t.Error(err)
		}
	})
}
