"""What the error codes of SQL databases mean: SQLSTATE, MySQL, SQLite, Oracle and SQL Server numbers, and texts."""

from __future__ import annotations

from collections.abc import Mapping

from celery_resilience.libraries.rows import TextTable, numbers, words
from celery_resilience.libraries.verdict import (
    AUTHENTICATION,
    NETWORK,
    PERMANENT,
    STRUCTURAL,
    SYSTEM,
    TRANSIENT,
    VALIDATION,
    FailureClass,
)

_SQLSTATE_EXACT = words(
    {
        TRANSIENT: "40001 40P01 40003 40000 55P03 55006 57014 25P03 25P04 57P05",
        SYSTEM: "57P01 57P02 57P03 25006 53000 53100 53200 53300 53400 58000 58030",
        NETWORK: "08000 08001 08003 08004 08006 08007 HYT00 HYT01",
        AUTHENTICATION: "28000 28P01 42501",
        STRUCTURAL: "42P01 42703 42883 42704 42P02 3F000 3D000 42S02 42S22 26000 58P01",
        PERMANENT: "57P04 25P02 P0001 P0002 P0003 XX001 XX002 0A000",
    }
)
_SQLSTATE_CLASS: Mapping[str, FailureClass] = {
    "08": NETWORK,
    "22": VALIDATION,
    "23": PERMANENT,
    "25": PERMANENT,
    "28": AUTHENTICATION,
    "40": TRANSIENT,
    "42": STRUCTURAL,
    "53": SYSTEM,
    "54": VALIDATION,
    "55": TRANSIENT,
    "57": SYSTEM,
    "58": SYSTEM,
    "F0": PERMANENT,
    "HV": SYSTEM,
    "XX": SYSTEM,
}


def class_of_sqlstate(code: str) -> FailureClass | None:
    """Give the class of a five-character SQLSTATE: the code itself, else its two-character class; else PERMANENT."""
    if len(code) != 5 or not code.isalnum():
        return None
    return _SQLSTATE_EXACT.get(code) or _SQLSTATE_CLASS.get(code[:2], PERMANENT)


MYSQL = numbers(
    {
        TRANSIENT: (1205, 1213, 1020, 1317, 3024, 1969, 3058, 3101, 3572, 1614, 1637, 1689, 4031, 1412, 1099),
        SYSTEM: (
            1021, 1037, 1038, 1040, 1041, 1053, 1105, 1114, 1129, 1135, 1203, 1206, 1226, 1290, 1297, 1028, 1030, 1036,
            1792, 1836, 3032, 3100, 1194, 1195, 2008, 1015, 1016, 1023, 1026, 1180, 1181, 1033, 1034, 3168, 3169,
        ),
        NETWORK: (
            1042, 1043, 1047, 1077, 1078, 1079, 1080, 1081, 1152, 1158, 1159, 1160, 1161, 1184, 1189, 1190, 1218, 1927,
            2000, 2001, 2002, 2003, 2004, 2005, 2006, 2007, 2009, 2011, 2012, 2013, 2014, 2024, 2025, 2026, 2027,
            2047, 2055, 4900, 4903,
        ),
        AUTHENTICATION: (1044, 1045, 1095, 1130, 1131, 1132, 1141, 1142, 1143, 1147, 1227, 1251, 1370, 1396, 1410, 1698,
                         1820, 1862, 1873, 2049, 2059, 2061, 3118, 3879, 3955),
        STRUCTURAL: (1046, 1049, 1051, 1054, 1060, 1064, 1065, 1072, 1091, 1109, 1128, 1136, 1146, 1149, 1176, 1193,
                     1305, 1356, 1360, 1509, 1582),
        VALIDATION: (
            1048, 1052, 1063, 1118, 1153, 1162, 1171, 1216, 1230, 1231, 1232, 1264, 1265, 1292, 1300, 1364, 1365, 1366,
            1367, 1406, 1411, 1426, 1439, 1690, 3140, 3141, 3819, 4025, 1365, 2020, 1301, 3156,
        ),
        PERMANENT: (1022, 1050, 1007, 1008, 1061, 1062, 1169, 1215, 1217, 1235, 1295, 1415, 1451, 1452, 1557, 1586,
                    1859, 1761),
    }
)  # fmt: skip

SQLITE_NAMES = words(
    {
        TRANSIENT: "SQLITE_BUSY SQLITE_LOCKED SQLITE_INTERRUPT SQLITE_SCHEMA SQLITE_ABORT SQLITE_PROTOCOL",
        SYSTEM: "SQLITE_IOERR SQLITE_FULL SQLITE_NOMEM SQLITE_CANTOPEN SQLITE_READONLY SQLITE_CORRUPT SQLITE_NOLFS"
        " SQLITE_INTERNAL",
        PERMANENT: "SQLITE_NOTADB SQLITE_MISUSE SQLITE_NOTFOUND SQLITE_CONSTRAINT",
        AUTHENTICATION: "SQLITE_PERM SQLITE_AUTH",
        VALIDATION: "SQLITE_TOOBIG SQLITE_MISMATCH SQLITE_RANGE SQLITE_FORMAT",
    }
)
SQLITE_TEXT: TextTable = (
    (r"is locked|is busy|interrupted|locking protocol", TRANSIENT),
    (r"no such (table|column|function|index|view|module|collation)|has no column|syntax error|near \"|already exists"
     r"|has \d+ columns but", STRUCTURAL),
    (r"disk I/O|is full|unable to open|readonly|read-only|malformed|out of memory", SYSTEM),
    (r"not authorized|access permission", AUTHENTICATION),
    (r"not a database|file is encrypted|Cannot operate on a closed", PERMANENT),
    (r"too many (SQL variables|terms|columns)|string or blob too big|datatype mismatch|incorrect number of bindings"
     r"|too big|type .* is not supported", VALIDATION),
)  # fmt: skip

ORACLE = numbers(
    {
        TRANSIENT: (54, 60, 51, 1555, 4020, 4021, 8176, 8177, 25402, 25408, 30006, 1013, 2049, 104, 4068, 4061, 4065),
        NETWORK: (28, 1012, 3113, 3114, 3135, 12152, 12153, 12154, 12157, 12161, 12170, 12203, 12224, 12225, 12500,
                  12502,
                  12504, 12505, 12514, 12520, 12521, 12528, 12535, 12537, 12541, 12543, 12545, 12547, 12560, 12564,
                  12570,
                  12571, 12583, 12606, 12608, 12609, 12637, 17002, 25403),
        SYSTEM: (18, 20, 257, 600, 1033, 1034, 1089, 1090, 1092, 1109, 1536, 1578, 1631, 1652, 1653, 1654, 1658,
                 4030, 4031,
                 7445, 12516, 12518, 12519, 27101, 27102, 30036, 1109, 16456),
        AUTHENTICATION: (1004, 1005, 1017, 1031, 1045, 1950, 28000, 28001, 28002, 28009, 28040, 1988),
        STRUCTURAL: (900, 904, 903, 905, 907, 911, 917, 918, 923, 933, 936, 942, 2289, 4043, 4063, 6550),
        VALIDATION: (1400, 1407, 1438, 1722, 1830, 1840, 1841, 1843, 1847, 1858, 1861, 2290, 6502, 12899, 1426, 1476),
        PERMANENT: (1, 955, 1403, 1422, 2291, 2292),
    }
)  # fmt: skip

SQL_SERVER = numbers(
    {
        TRANSIENT: (1204, 1205, 1222, 3960, 3966, 10928, 10929, 40197, 40501, 40540, 40613, 49918, 49919,
                    49920, 41302, 41305, 41325, 41839, -2, 8645, 8651, 35201),
        NETWORK: (20002, 20003, 20004, 20006, 20009, 20017, 20047, 64, 121, 233, 10053, 10054, 10060, 10061, 11001,
                  53, 2,
                  20, 258, 26, 40, 18401, 983),
        SYSTEM: (701, 802, 823, 824, 825, 845, 945, 1101, 1105, 3906, 5120, 9002, 17142, 6005, 17830, 17809),
        AUTHENTICATION: (229, 230, 262, 300, 916, 4060, 4064, 18452, 18456, 18470, 18486, 18487, 18488, 40532, 20014),
        STRUCTURAL: (102, 105, 156, 170, 201, 207, 208, 213, 2812, 4104, 911, 2714),
        VALIDATION: (220, 241, 242, 245, 248, 257, 295, 515, 2628, 8114, 8115, 8134, 8152),
        PERMANENT: (547, 2601, 2627),
    }
)  # fmt: skip

DATABASE_TEXT: TextTable = (
    (r"password authentication failed|no password supplied|access denied|authentication failed|permission denied"
     r"|role \".*\" does not exist|no pg_hba\.conf entry|login failed|peer authentication|not permitted to log in"
     r"|must be owner|certificate authentication", AUTHENTICATION),
    (r"deadlock|could not serialize|lock wait timeout|lock timeout|is locked|could not obtain lock|statement timeout"
     r"|restarting transaction|canceling statement|try again", TRANSIENT),
    (r"too many (connections|clients)|remaining connection slots|max_connections|no space left|out of memory|is full"
     r"|out of shared memory|read-only transaction|starting up|shutting down|in recovery|recovery mode|disk full"
     r"|pool|not yet accepting", SYSTEM),
    (r"(database|relation) \".*\" does not exist|unknown database|no such (table|column)|doesn't exist"
     r"|column .* does not exist|unknown column|syntax error|unknown table", STRUCTURAL),
    (r"connect|server closed|terminating|gone away|broken pipe|reset by peer|timed? ?out|timeout expired|SSL|EOF"
    " detected"
     r"|could not translate host|name resolution|not known|unreachable|no route|socket|network|refused|lost sync"
     r"|packet sequence", NETWORK),
)  # fmt: skip
"""For errors without a code, which is what a failed connection mostly gives."""
